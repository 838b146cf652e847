"""The command demo: the main job on real input, from an empty folder to windows and figures."""
