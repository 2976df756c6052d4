"""Sphinx configuration: `pip install -e ".[docs]"`, then `sphinx-build docs docs/_build`."""

from skdeepcluster import __version__

project = "skdeepcluster"
author = "the skdeepcluster developers"
release = version = __version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.mathjax", "numpydoc", "sphinx_gallery.gen_gallery"]
html_theme = "furo"
exclude_patterns = ["_build"]
numpydoc_show_class_members = False
sphinx_gallery_conf = {"examples_dirs": "../examples", "gallery_dirs": "auto_examples"}
