from .anchor_encoder import AnchorEncoder as AnchorEncoder
from .matrix_recommender import MatrixRecommender as MatrixRecommender

__all__ = ["AnchorEncoder", "MatrixRecommender"]
