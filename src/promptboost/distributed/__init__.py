"""Work in shards, here or on Ray: embedding, predicting, evaluating and large pools."""
