"""``python -m benchmarks.http_flask ITEMS FACTORS``: implicit behind Flask, as Cornac serves it.

One GET per user, answered by the model's own `recommend`, on Flask's server with its threads.
"""

import sys

import numpy as np
import torch
from implicit.cpu.als import AlternatingLeastSquares
from scipy.sparse import csr_matrix

from benchmarks.http_models import LENGTH, QUERIES, histories


def main() -> None:
    """Serve until the process is ended."""
    from flask import Flask, jsonify, request
    from werkzeug.serving import make_server

    items, factors = map(int, sys.argv[1:])
    generator = torch.Generator().manual_seed(0)
    model = AlternatingLeastSquares(factors=factors, num_threads=2)
    model.user_factors = torch.randn(QUERIES, factors, generator=generator).numpy()
    model.item_factors = torch.randn(items, factors, generator=generator).numpy()
    columns = np.array(histories(items), dtype=np.int32)
    columns.sort(axis=1)
    seen = csr_matrix(
        (np.ones(columns.size, np.float32), columns.ravel(), np.arange(QUERIES + 1) * LENGTH),
        shape=(QUERIES, items),
    )
    app = Flask(__name__)

    def recommend() -> object:
        user, k = int(request.args["uid"]), int(request.args["k"])
        ids, scores = model.recommend(user, seen[user], N=k)
        found = [
            {"item": f"item-{one}", "score": float(s)} for one, s in zip(ids, scores, strict=True)
        ]
        return jsonify({"recommendations": found, "query": {"uid": user, "k": k}})

    app.add_url_rule("/recommend", view_func=recommend)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    print(f"http://127.0.0.1:{server.server_port}/", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
