"""Matrix products: register blocks, panels, matrix-vector and outer products, linear backward
passes."""
