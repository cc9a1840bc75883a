"""Files of anchor tables: schema, quantisation, saving, loading and memory mapping."""
