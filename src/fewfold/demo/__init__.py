"""What fewfold does, to look at: the main job on the bundled data, and the maps."""
