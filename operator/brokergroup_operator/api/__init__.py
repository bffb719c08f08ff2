"""The kinds as typed models; crds/*.yaml are generated from them."""
