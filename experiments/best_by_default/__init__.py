"""The models of the recommender against published figures; settings come from validation data."""
