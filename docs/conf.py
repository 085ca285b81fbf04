"""Configuration of Sphinx: `sphinx-build -W docs build/docs`."""

import re

import mpi4jax

project = "mpi4jax"
copyright = "the mpi4jax developers"
version = release = mpi4jax.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_typehints = "signature"
autodoc_type_aliases = {
    name: name
    for name in (
        "AnyToken",
        "Array",
        "ArrayLike",
        "Comm",
        "Counts",
        "Integer",
        "Op",
        "Status",
    )
}
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"mpi4jax {release}"


def plain_names(app, what, name, obj, options, signature, annotation):
    """Names of types where Sphinx would show how it refers to them."""

    def plain(text):
        return text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text)

    return plain(signature), plain(annotation)


def setup(app):
    app.connect("autodoc-process-signature", plain_names)
