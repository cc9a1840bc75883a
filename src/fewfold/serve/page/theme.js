// Runs before the first paint, so that a chosen theme does not flash.
{
  const chosen = localStorage.getItem("fewfold-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
}
