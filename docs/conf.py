"""Configuration of Sphinx: `sphinx-build -W docs build/docs`."""

import re
import zlib
from pathlib import Path
from xml.etree import ElementTree

from docutils.nodes import SkipNode, reference
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.ext.intersphinx import missing_reference

import mpi4jax

project = "mpi4jax"
author = "The mpi4jax-in-Rust authors"
copyright = f"2026, {author}"
version = release = mpi4jax.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88
copybutton_prompt_text = "$ "

html_math_renderer = "mathml"
MATHML = "http://www.w3.org/1998/Math/MathML"
html_theme = "furo"
html_title = f"mpi4jax {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"top_of_page_buttons": []}

#: The types in signatures, and what they refer to.
TYPES = {
    "Token": "mpi4jax.LinearToken",
    "Array": "jax.Array",
    "ArrayLike": "jax.typing.ArrayLike",
    "Comm": "mpi4py.MPI.Intracomm",
    "Counts": "collections.abc.Sequence",
    "Integer": "int",
    "Rank": "int",
    "Op": "mpi4py.MPI.Op",
    "RankTree": "int",
    "Scalar": "int",
    "Status": "mpi4py.MPI.Status",
}
autodoc_type_aliases = {name: name for name in TYPES}

# Names of other projects are looked up in their inventories. Without a network, those
# that these pages use are found in inventories that are made here.
REFERENCES = {
    "python": (
        "https://docs.python.org/3/",
        {
            "collections.abc.Sequence": "library/collections.abc.html#$",
            "int": "library/functions.html#$",
        },
    ),
    "jax": (
        "https://docs.jax.dev/en/latest/",
        {
            "jax.Array": "_autosummary/$.html#$",
            "jax.block_until_ready": "_autosummary/$.html#$",
            "jax.distributed.initialize": "_autosummary/$.html#$",
            "jax.effects_barrier": "_autosummary/$.html#$",
            "jax.jit": "_autosummary/$.html#$",
            "jax.typing.ArrayLike": "_autosummary/$.html#$",
        },
    ),
    "mpi4py": (
        "https://mpi4py.readthedocs.io/en/stable/",
        {
            "mpi4py.MPI.Cartcomm": "reference/$.html#$",
            "mpi4py.MPI.Intracomm": "reference/$.html#$",
            "mpi4py.MPI.Op": "reference/$.html#$",
            "mpi4py.MPI.Status": "reference/$.html#$",
        },
    ),
    "numpy": (
        "https://numpy.org/doc/stable/",
        {"numpy.ndarray": "reference/generated/$.html#$"},
    ),
}
intersphinx_timeout = 5


def offline_inventory(name: str) -> str:
    """A file like the `objects.inv` of a project, with the `REFERENCES` to it."""
    folder = Path(__file__).resolve().parent.parent / "build" / "inventories"
    folder.mkdir(parents=True, exist_ok=True)
    entries = "".join(
        f"{entry} py:class 1 {page.replace('$', entry)} -\n"
        for entry, page in REFERENCES[name][1].items()
    )
    header = (
        f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n"
        "# The remainder of this file is compressed using zlib.\n"
    )
    path = folder / f"{name}.inv"
    path.write_bytes(header.encode() + zlib.compress(entries.encode()))
    return str(path)


intersphinx_mapping = {
    name: (url, (None, offline_inventory(name))) for name, (url, _) in REFERENCES.items()
}


def plain_names(app, kind, name, obj, options, signature, annotation):
    """Names of types where Sphinx would show how it refers to them."""

    def plain(text):
        return text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text)

    return plain(signature), plain(annotation)


def short_names(app, environment, node, text) -> reference | None:
    """Find what the short names of types in signatures refer to."""
    name = TYPES.get(node.get("reftarget"))
    if name is None:
        return None
    node["reftarget"] = name
    if name.startswith("mpi4jax."):
        domain, page = environment.domains["py"], node["refdoc"]
        return domain.resolve_xref(
            environment, page, app.builder, node["reftype"], name, node, text
        )
    return missing_reference(app, environment, node, text)


def with_low_indices(formula: str) -> str:
    """A formula whose indices are low in fonts, too, that do not say how low.

    An index is at least as low as what it belongs to, so that gets an invisible strut.
    """
    ElementTree.register_namespace("", MATHML)
    root = ElementTree.fromstring(formula)
    for element in root.iter():
        if element.tag in (f"{{{MATHML}}}msub", f"{{{MATHML}}}msubsup"):
            row = ElementTree.Element(f"{{{MATHML}}}mrow")
            row.append(element[0])
            ElementTree.SubElement(row, f"{{{MATHML}}}mspace", depth="0.2em")
            element[0] = row
    return ElementTree.tostring(root, encoding="unicode")


def write_formula(writer, node):
    """Formulas are MathML, which browsers typeset without a script.

    An index of an accented letter is written as in `\\dot{x}{}_r`: right after the accent,
    docutils would put it below the letter.
    """
    is_block = node.tagname == "math_block"
    element = "div" if is_block else "span"
    start = writer.starttag(node, element, "", CLASS="math notranslate nohighlight")
    formula = with_low_indices(tex2mathml(node.astext(), as_block=is_block))
    writer.body.append(f"{start}{formula}</{element}>")
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.connect("autodoc-process-signature", plain_names)
    app.connect("missing-reference", short_names)
