# %% [markdown]
# # Serve it
#
# `fewfold serve MODEL` answers questions to a model over HTTP. This tutorial fits a small model,
# starts the server, asks it, sends feedback, and stops it. It needs `pip install '.[serve]'`.
#
# The model is that of [the first tutorial](first_recommender.py).

# %%
import tempfile
from pathlib import Path

import fewfold as ff

folder = tempfile.TemporaryDirectory()
model = Path(folder.name) / "model"
rec = ff.Recommender(ff.recommender.EASE(l2=20.0))
rec.fit(
    ff.recommender.bundled(), core=12, items_table=ff.recommender.bundled_items(), progress=False
)
rec.save(model)

# %% [markdown]
# ## Start the server
#
# In a terminal this is `fewfold serve model`. Port 0 is any free port; the log, on standard error,
# has the address.

# %%
import re
import subprocess
import sys

command = [sys.executable, "-m", "fewfold", "serve", str(model), "--port", "0"]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
address = next(filter(None, (re.search(r"http://\S+?(?=/)", line) for line in server.stderr)))[0]

# %% [markdown]
# ## Ask
#
# A query has a user or a history. `explain` names the parts of the history that count most.

# %%
import json
import urllib.request


def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address + path, data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


query = {"history": ["libssl-dev", "zlib1g-dev"], "k": 3, "explain": True}
answer = ask("/v1/recommendations", query)
for found in answer["items"]:
    because = ", ".join(reason["item"] for reason in found["because"])
    print(f"{found['item']:22} {found['score']:.3f}  because of {because}")

# %% [markdown]
# ## Send feedback
#
# An event is on the disk when the answer arrives, and counts in the next recommendations for that
# user, also if the user is new:

# %%
ask("/v1/feedback", {"user": "ann", "item": "libpng-dev"})
answer = ask("/v1/users/ann/recommendations?k=3")
print([found["item"] for found in answer["items"]])

# %% [markdown]
# ## Look at it
#
# The address itself is a page, on which a person sees whether the answers make sense:
#
# ![The page: recommendations with scores and reasons](../images/page_try.png)
#
# ## Stop

# %%
server.terminate()
print("exit code", server.wait(timeout=60))
server.stderr.close()
folder.cleanup()

# %% [markdown]
# Next: [all requests, deployment and updates](../serving.md), [re-ranking](../reranking.md).
