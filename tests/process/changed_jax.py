"""A JAX that has changed: what of mpi4jax works with it.

Reads changes from stdin, one a line as JSON, and answers each with what happened in a
process of its own, which is forked from one that has imported JAX.

    {"without": ["jax._src.core:Primitive", ...]}      names that JAX lacks
    {"function": "from_hlo"}                           a function with another name
    {"function": "from_hlo", "variable": "..."}        one of its variables has another name
    {"function": "...", "copied": "ordered_effects"}   it returns a copy of a variable
    {"event": "BACKEND_COMPILE_EVENT"}                 an event with another name
    {"cleared": true}                                  the program removes all listeners
    {"version": "99.1.0"}                              another version
"""

import ast
import importlib
import inspect
import json
import os
import sys
import traceback
import warnings

import jax

# These have to have their names from private modules before these lose them.
import jax.extend.backend
import jax.extend.core
import jax.extend.source_info_util
import jax.numpy as jnp
from jax._src import dispatch
from jax._src.interpreters import pxla


class Part:
    """A module, or a part of one, without some of its names."""

    def __init__(self, whole, names):
        self._whole, self._hidden = whole, names

    def __getattr__(self, name):
        inner = [hidden.partition(".")[2] for hidden in self._hidden]
        parts = [hidden.partition(".")[0] for hidden in self._hidden]
        if name in self._hidden:
            raise AttributeError(name)
        value = getattr(self._whole, name)
        return Part(value, inner) if name in parts else value


def hide(paths):
    """Make imports find modules without these names. Returns the modules as they were."""
    modules = {}
    for path in paths:
        module, _, name = path.partition(":")
        modules.setdefault(module, []).append(name)
    originals = {module: importlib.import_module(module) for module in modules}
    for module, names in modules.items():
        sys.modules[module] = Part(originals[module], names)
    return originals


class Renaming(ast.NodeTransformer):
    """A function in which a variable has another name, or a copy of it is returned."""

    def __init__(self, variable, copied):
        self.variable, self.copied, self.is_in_return = variable, copied, False

    def visit_Name(self, node):
        if node.id == self.variable or (self.is_in_return and node.id == self.copied):
            return ast.Name(f"new_{node.id}", node.ctx)
        return node

    def visit_Return(self, node):
        self.is_in_return = True
        return self.generic_visit(node)

    def visit_Assign(self, node):
        node = self.generic_visit(node)
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if self.copied not in names:
            return node
        return [node, *ast.parse(f"new_{self.copied} = list({self.copied})").body]


def change(name, variable=None, copied=None):
    """Change a function of JAX's that lowers or compiles programs."""
    owner = pxla if hasattr(pxla, name) else pxla.UnloadedMeshExecutable
    nodes = ast.parse(inspect.getsource(pxla)).body
    if owner is not pxla:
        (nodes,) = (
            node.body for node in nodes if getattr(node, "name", "") == owner.__name__
        )
    (definition,) = (node for node in nodes if getattr(node, "name", "") == name)
    before = ast.unparse(definition)
    if variable is not None:
        known = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
        (variable,) = (name for name in variable.split("|") if name in known)
    if variable is None and copied is None:
        definition.name = new_name = f"new_{name}"
    else:
        new_name = name
        renaming = Renaming(variable, copied)
        body = [renaming.visit(statement) for statement in definition.body]
        definition.body = []
        parameters = definition.args
        if variable in [p.arg for p in parameters.args + parameters.kwonlyargs]:
            definition.body += ast.parse(
                f"new_{variable} = {variable}; del {variable}"
            ).body
        for statement in body:
            definition.body += statement if isinstance(statement, list) else [statement]
    assert ast.unparse(definition) != before
    tree, names = ast.Module([definition], []), vars(pxla)
    exec(compile(ast.fix_missing_locations(tree), pxla.__file__, "exec"), names)
    setattr(owner, name, names[new_name])


def steps():
    """What has to work, one after another: each asserts its results."""
    from mpi4py import MPI

    from mpi4jax import halo
    from mpi4jax import notoken as mpi

    x = jnp.arange(3.0)
    self = MPI.COMM_SELF

    def total(x):
        return mpi.allreduce(x, MPI.SUM, comm=self)

    def exchanged(x):
        return mpi.sendrecv(x, x, 0, 0, comm=self)

    def eager():
        assert total(x).tolist() == [0, 1, 2]

    def jit():
        compiled = jax.jit(lambda x: exchanged(total(x) + 1))
        for _ in range(3):
            assert compiled(x).tolist() == [1, 2, 3]

    def grad():
        value = jax.jit(jax.grad(lambda x: (total(x) ** 2).sum()))(x)
        assert value.tolist() == [0, 2, 4]

    def loop():
        def body(n, x):
            return exchanged(x) + 1

        assert jax.jit(lambda x: jax.lax.fori_loop(0, 4, body, x))(x).tolist() == [4, 5, 6]

    def checkpoint():
        value = jax.jit(jax.grad(jax.checkpoint(lambda x: (total(x) ** 2).sum())))(x)
        assert value.tolist() == [0, 2, 4]

    def custom_jvp():
        function = jax.custom_jvp(total)
        function.defjvps(lambda t, y, x: 3 * t)
        with jax.enable_checks(True):
            assert jax.jit(function)(x).tolist() == [0, 1, 2]
        assert jax.jit(jax.grad(lambda x: function(x).sum()))(x).tolist() == [3, 3, 3]

    def halo_exchange():
        plan = halo.Plan(self.Create_cart([1], [True]), shape=[3])
        assert plan.exchange(jnp.arange(5.0)).tolist() == [3, 1, 2, 3, 1]

    def overlap():
        y, z = jax.jit(lambda x: mpi.overlap(lambda: total(x), during=lambda: x + 1))(x)
        assert (y.tolist(), z.tolist()) == ([0, 1, 2], [1, 2, 3])

    def barrier():
        from mpi4jax._internal.operations._in_order import ordering_barrier_p

        assert ordering_barrier_p.bind(x)[0].tolist() == [0, 1, 2]

    def mesh():
        if hasattr(jax, "set_mesh"):
            with jax.set_mesh(jax.make_mesh((1,), ("x",))):
                assert total(x).tolist() == [0, 1, 2]

    def compiled():
        program = jax.jit(total).lower(x).compile()
        for n in range(3):
            assert program(n * x)[1] == n

    def ending():
        from mpi4jax._internal.xla import flush

        flush.flush()

    return [
        eager, jit, grad, loop, checkpoint, custom_jvp, halo_exchange, overlap, barrier,
        mesh, compiled, ending,
    ]  # fmt: skip


def python_calls():
    """How many functions of Python's the call of a jitted function makes."""
    from mpi4py import MPI

    from mpi4jax import notoken as mpi

    program, x, count = jax.jit(lambda x: mpi.allreduce(x, MPI.SUM)), jnp.ones(3), 0

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call"

    for _ in range(3):
        program(x).block_until_ready()
    sys.setprofile(profile)
    program(x)
    sys.setprofile(None)
    return count


def try_steps(changes):
    """What works after a change: errors by step, warnings, and the report of doctor."""
    originals = hide(changes.get("without", ()))
    if "function" in changes:
        function, variable = changes["function"], changes.get("variable")
        change(function, variable, changes.get("copied"))
    if "version" in changes:
        jax.__version__ = changes["version"]
    if "event" in changes:
        setattr(dispatch, changes["event"], "/jax/new")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            todo = steps()
        except ImportError as error:
            return {"import": f"{type(error).__name__}: {error}"}
        sys.modules.update(originals)
        if changes.get("cleared"):
            jax.monitoring.clear_event_listeners()
        errors = {}
        for step in todo:
            try:
                step()
            except Exception as error:
                traceback.print_exc()
                errors[step.__name__] = f"{type(error).__name__}: {error}"
            if changes.get("cleared"):
                jax.monitoring.clear_event_listeners()
        count = python_calls()
    from mpi4jax._commands import facts

    return {
        "errors": errors,
        "warnings": [str(w.message) for w in caught if w.category is UserWarning],
        "calls": count,
        "doctor": facts.of_this_process()["warnings"],
    }


def main():
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            answer = try_steps(json.loads(line))
            os.write(answers, (json.dumps(answer) + "\n").encode())
            # Nothing is at stake at the exit, which has tests of its own.
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            os.write(answers, b'{"import": "the process ended"}\n')


if __name__ == "__main__":
    main()
