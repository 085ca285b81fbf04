"""Files of divided arrays: checkpoints and output, in the format Zarr v3."""
