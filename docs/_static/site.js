// A picture links to its file, so that it can be enlarged where the page is narrow.
document.addEventListener("DOMContentLoaded", () => {
    for (const picture of document.querySelectorAll("article img[src*='_images/']")) {
        if (picture.closest("a")) continue;
        const link = document.createElement("a");
        link.href = picture.src;
        picture.replaceWith(link);
        link.append(picture);
    }
});
