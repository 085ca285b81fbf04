//! Topologies of one process (MPI-3.1 §7).

use std::ffi::c_int;

use super::communicators;
use super::errors::{ARG, DIMS, Error, RANK, Result, TOPOLOGY, count as counted};
use super::handles::{COMM_NULL, UNDEFINED, state};
use super::memory::{In, Out};
use super::messages::PROC_NULL;

/// The topology of a communicator.
#[derive(Clone)]
pub enum Topology {
    /// Whether each dimension, which has one process, is periodic.
    Cart(Vec<bool>),
    /// The neighbors of the process, itself.
    Graph(Vec<c_int>),
    /// Whence and whereto, with weights if it has any.
    DistGraph {
        sources: Edges,
        destinations: Edges,
        is_weighted: bool,
    },
}

/// The ends of edges and their weights.
type Edges = Vec<(c_int, c_int)>;

fn topology(comm: c_int) -> Result<Topology> {
    let topology = state().communicators.get(comm)?.topology.clone();
    topology.ok_or_else(|| Error::new(TOPOLOGY, "the communicator has no topology"))
}

fn cart(comm: c_int) -> Result<Vec<bool>> {
    match topology(comm)? {
        Topology::Cart(periods) => Ok(periods),
        _ => Err(Error::new(
            TOPOLOGY,
            "the communicator has no Cartesian topology",
        )),
    }
}

fn graph(comm: c_int) -> Result<Vec<c_int>> {
    match topology(comm)? {
        Topology::Graph(edges) => Ok(edges),
        _ => Err(Error::new(
            TOPOLOGY,
            "the communicator has no graph topology",
        )),
    }
}

/// The slots from which and to which blocks go in neighborhood collectives (MPI-4.1 §8.6).
pub fn pairs(comm: c_int) -> Result<Vec<(usize, usize)>> {
    let (sources, destinations): (Vec<_>, Vec<_>) = match topology(comm)? {
        // What goes in the negative direction comes from the positive one.
        Topology::Cart(periods) => {
            let periodic = (0..periods.len()).filter(|dimension| periods[*dimension]);
            let both = |dimension: usize| {
                let slot = 2 * dimension;
                [(slot, slot + 1), (slot + 1, slot)]
            };
            return Ok(periodic.flat_map(both).collect());
        }
        Topology::Graph(edges) => (edges.clone(), edges),
        Topology::DistGraph {
            sources,
            destinations,
            ..
        } => {
            let ends = |edges: Edges| edges.into_iter().map(|(end, _)| end).collect();
            (ends(sources), ends(destinations))
        }
    };
    let slots = |ends: &[c_int]| -> Vec<usize> {
        (0..ends.len())
            .filter(|slot| ends[*slot] != PROC_NULL)
            .collect()
    };
    let (sources, destinations) = (slots(&sources), slots(&destinations));
    if sources.len() != destinations.len() {
        let given = format!(
            "{} edges from and {} to the process",
            sources.len(),
            destinations.len()
        );
        return Err(Error::got(
            TOPOLOGY,
            given,
            "a graph of one process",
            "as many",
        ));
    }
    Ok(destinations.into_iter().zip(sources).collect())
}

/// Checks a grid, and says whether it has a place for the process.
fn check_dims(ndims: c_int, dims: In<c_int>) -> Result<bool> {
    let dims = dims_of(ndims, dims)?;
    if let Some(wrong) = dims.iter().find(|dim| **dim < 0) {
        return Err(Error::got(DIMS, wrong, "a dimension", "1"));
    }
    let size = dims
        .iter()
        .map(|dim| i64::from(*dim))
        .fold(1, i64::saturating_mul);
    if size > 1 {
        let expected = "1, for one process";
        return Err(Error::got(
            ARG,
            size,
            "the product of the dimensions",
            expected,
        ));
    }
    Ok(size == 1)
}

fn dims_of(ndims: c_int, dims: In<c_int>) -> Result<Vec<c_int>> {
    if ndims < 0 {
        return Err(Error::got(
            DIMS,
            ndims,
            "the number of dimensions",
            "0 or more",
        ));
    }
    dims.all(ndims)
}

fn check_rank(rank: c_int) -> Result<()> {
    communicators::check_rank(rank, RANK, "a rank")
}

/// Checks that arrays of the program's have room for some elements.
fn check_room(room: c_int, needed: usize, what: &str) -> Result<()> {
    if counted(room)? >= needed {
        return Ok(());
    }
    Err(Error::got(ARG, room, what, &format!("at least {needed}")))
}

/// The smallest divisor above 1.
fn divisor(number: c_int) -> c_int {
    let small = (2..).take_while(|some| i64::from(*some) * i64::from(*some) <= number.into());
    let mut small = small;
    small.find(|some| number % some == 0).unwrap_or(number)
}

/// The neighbors in a graph of nodes, whose edges end at `index`.
fn graph_edges(nodes: c_int, index: In<c_int>, edges: In<c_int>) -> Result<Option<Vec<c_int>>> {
    match counted(nodes)? {
        0 => Ok(None),
        1 => {
            let edges = edges.all(index.at(0)?)?;
            edges.iter().try_for_each(|edge| check_rank(*edge))?;
            Ok(Some(edges))
        }
        _ => Err(Error::got(
            ARG,
            nodes,
            "the number of nodes",
            "at most 1, for one process",
        )),
    }
}

/// Weights that are given as none (`MPI_UNWEIGHTED`), or as those of no edges.
struct Weights(In<c_int>);

/// What the addresses of special weights point to.
#[repr(transparent)]
pub struct Special(*const c_int);

// SAFETY: nobody writes to what it points to.
unsafe impl Sync for Special {}

static UNWEIGHTED: c_int = 0;
static WEIGHTS_EMPTY: c_int = 0;

/// `MPI_UNWEIGHTED`.
#[unsafe(no_mangle)]
pub static MPI_UNWEIGHTED: Special = Special(&raw const UNWEIGHTED);

/// `MPI_WEIGHTS_EMPTY`.
#[unsafe(no_mangle)]
pub static MPI_WEIGHTS_EMPTY: Special = Special(&raw const WEIGHTS_EMPTY);

impl Weights {
    fn are_given(&self) -> bool {
        self.0.0 != &raw const UNWEIGHTED
    }

    /// The ends with their weights, or with one each.
    fn of(&self, ends: Vec<c_int>) -> Result<Edges> {
        ends.iter().try_for_each(|end| {
            if *end == PROC_NULL {
                Ok(())
            } else {
                check_rank(*end)
            }
        })?;
        let weights = if self.are_given() && !ends.is_empty() {
            self.0.all(ends.len() as c_int)?
        } else {
            vec![1; ends.len()]
        };
        if let Some(weight) = weights.iter().find(|weight| **weight < 0) {
            return Err(Error::got(ARG, weight, "a weight", "0 or more"));
        }
        Ok(ends.into_iter().zip(weights).collect())
    }
}

fn put_edges(
    edges: &Edges,
    room: c_int,
    ends: Out<c_int>,
    weights: Out<c_int>,
    is_weighted: bool,
) -> Result<()> {
    let are_wanted = is_weighted && Weights(In(weights.0)).are_given();
    for (index, (end, weight)) in edges.iter().take(counted(room)?).enumerate() {
        ends.put_at(index, *end)?;
        if are_wanted {
            weights.put_at(index, *weight)?;
        }
    }
    Ok(())
}

mpi! {
    MPI_Topo_test(comm: c_int, status: Out<c_int>) on comm => {
        status.put(match state().communicators.get(comm)?.topology {
            None => UNDEFINED,
            Some(Topology::Graph(_)) => 1,
            Some(Topology::Cart(_)) => 2,
            Some(Topology::DistGraph { .. }) => 3,
        })
    };
    MPI_Dims_create(nodes: c_int, ndims: c_int, dims: Out<c_int>) => {
        let mut found = dims_of(ndims, In(dims.0))?;
        let fixed = found.iter().filter(|dim| **dim != 0).try_fold(1, |product: c_int, dim| {
            if *dim < 0 { None } else { product.checked_mul(*dim) }
        });
        let Some(fixed) = fixed.filter(|fixed| nodes > 0 && nodes % fixed == 0) else {
            let given = format!("dimensions {found:?}");
            return Err(Error::got(DIMS, given, "a grid", &format!("ones that divide {nodes}")));
        };
        let mut free = vec![1; found.iter().filter(|dim| **dim == 0).count()];
        let (mut rest, mut factors) = (nodes / fixed, Vec::new());
        while rest > 1 {
            factors.push(divisor(rest));
            rest /= divisor(rest);
        }
        if free.is_empty() && !factors.is_empty() {
            let given = format!("dimensions {found:?}");
            return Err(Error::got(DIMS, given, "a grid", &format!("ones with the product {nodes}")));
        }
        for factor in factors.into_iter().rev() {
            if let Some(smallest) = free.iter_mut().min() {
                *smallest *= factor;
            }
        }
        free.sort_unstable_by(|first, second| second.cmp(first));
        let mut free = free.into_iter();
        for dim in found.iter_mut().filter(|dim| **dim == 0) {
            *dim = free.next().unwrap_or(1);
        }
        dims.put_all(&found)
    };
    MPI_Cart_create(
        comm: c_int, ndims: c_int, dims: In<c_int>, periods: In<c_int>, _reorder: c_int,
        new: Out<c_int>,
    ) on comm => {
        if !check_dims(ndims, dims)? {
            return new.put(COMM_NULL);
        }
        let periods = periods.all(ndims)?.iter().map(|period| *period != 0).collect();
        new.put(communicators::make(comm, Some(Topology::Cart(periods)))?)
    };
    MPI_Cart_map(
        comm: c_int, ndims: c_int, dims: In<c_int>, _periods: In<c_int>, rank: Out<c_int>,
    ) on comm => {
        rank.put(if check_dims(ndims, dims)? { 0 } else { UNDEFINED })
    };
    MPI_Cartdim_get(comm: c_int, ndims: Out<c_int>) on comm => ndims.put(cart(comm)?.len() as c_int);
    MPI_Cart_get(
        comm: c_int, room: c_int, dims: Out<c_int>, periods: Out<c_int>, coords: Out<c_int>,
    ) on comm => {
        let found = cart(comm)?;
        check_room(room, found.len(), "the length of arrays")?;
        for (index, period) in found.iter().enumerate() {
            dims.put_at(index, 1)?;
            periods.put_at(index, (*period).into())?;
            coords.put_at(index, 0)?;
        }
        Ok(())
    };
    MPI_Cart_rank(comm: c_int, coords: In<c_int>, rank: Out<c_int>) on comm => {
        for (index, is_periodic) in cart(comm)?.into_iter().enumerate() {
            let coord = coords.at(index)?;
            if !is_periodic && coord != 0 {
                let expected = "0 in a dimension of one process";
                return Err(Error::got(ARG, coord, "a coordinate", expected));
            }
        }
        rank.put(0)
    };
    MPI_Cart_coords(comm: c_int, rank: c_int, room: c_int, coords: Out<c_int>) on comm => {
        let found = cart(comm)?;
        check_rank(rank)?;
        check_room(room, found.len(), "the length of an array")?;
        coords.put_all(&vec![0; found.len()])
    };
    MPI_Cart_shift(
        comm: c_int, direction: c_int, displacement: c_int, source: Out<c_int>, dest: Out<c_int>,
    ) on comm => {
        let periods = cart(comm)?;
        let period = usize::try_from(direction).ok().and_then(|index| periods.get(index));
        let expected = format!("less than {}", periods.len());
        let period = period.ok_or_else(|| Error::got(ARG, direction, "the direction", &expected))?;
        let neighbor = if *period || displacement == 0 { 0 } else { PROC_NULL };
        source.put(neighbor)?;
        dest.put(neighbor)
    };
    MPI_Cart_sub(comm: c_int, remain: In<c_int>, new: Out<c_int>) on comm => {
        let periods = cart(comm)?;
        let remain = remain.all(periods.len() as c_int)?;
        let kept = periods.into_iter().zip(remain).filter(|(_, remains)| *remains != 0);
        let kept = kept.map(|(period, _)| period).collect();
        new.put(communicators::make(comm, Some(Topology::Cart(kept)))?)
    };
    MPI_Graph_create(
        comm: c_int, nodes: c_int, index: In<c_int>, edges: In<c_int>, _reorder: c_int,
        new: Out<c_int>,
    ) on comm => {
        let edges = graph_edges(nodes, index, edges)?;
        new.put(match edges {
            None => COMM_NULL,
            Some(edges) => communicators::make(comm, Some(Topology::Graph(edges)))?,
        })
    };
    MPI_Graph_map(
        comm: c_int, nodes: c_int, index: In<c_int>, edges: In<c_int>, rank: Out<c_int>,
    ) on comm => {
        let has_node = graph_edges(nodes, index, edges)?.is_some();
        rank.put(if has_node { 0 } else { UNDEFINED })
    };
    MPI_Graphdims_get(comm: c_int, nodes: Out<c_int>, edges: Out<c_int>) on comm => {
        edges.put(graph(comm)?.len() as c_int)?;
        nodes.put(1)
    };
    MPI_Graph_get(
        comm: c_int, max_index: c_int, max_edges: c_int, index: Out<c_int>, edges: Out<c_int>,
    ) on comm => {
        let found = graph(comm)?;
        if counted(max_index)? < 1 || counted(max_edges)? < found.len() {
            let given = format!("{max_index} and {max_edges}");
            let expected = format!("at least 1 and {}", found.len());
            return Err(Error::got(ARG, given, "the lengths of arrays", &expected));
        }
        index.put(found.len() as c_int)?;
        edges.put_all(&found)
    };
    MPI_Graph_neighbors_count(comm: c_int, rank: c_int, count: Out<c_int>) on comm => {
        check_rank(rank)?;
        count.put(graph(comm)?.len() as c_int)
    };
    MPI_Graph_neighbors(comm: c_int, rank: c_int, room: c_int, neighbors: Out<c_int>) on comm => {
        check_rank(rank)?;
        let found = graph(comm)?;
        check_room(room, found.len(), "the length of an array")?;
        neighbors.put_all(&found)
    };
    MPI_Dist_graph_create_adjacent(
        comm: c_int, indegree: c_int, sources: In<c_int>, source_weights: In<c_int>,
        outdegree: c_int, destinations: In<c_int>, destination_weights: In<c_int>,
        _info: c_int, _reorder: c_int, new: Out<c_int>,
    ) on comm => {
        let (from, to) = (Weights(source_weights), Weights(destination_weights));
        let topology = Topology::DistGraph {
            sources: from.of(sources.all(indegree)?)?,
            destinations: to.of(destinations.all(outdegree)?)?,
            is_weighted: from.are_given() || to.are_given(),
        };
        new.put(communicators::make(comm, Some(topology))?)
    };
    MPI_Dist_graph_create(
        comm: c_int, count: c_int, sources: In<c_int>, degrees: In<c_int>,
        destinations: In<c_int>, weights: In<c_int>, _info: c_int, _reorder: c_int,
        new: Out<c_int>,
    ) on comm => {
        sources.all(count)?.iter().try_for_each(|rank| check_rank(*rank))?;
        let degrees = degrees.all(count)?;
        let total = degrees.iter().try_fold(0, |sum: c_int, degree| {
            counted(*degree)?;
            sum.checked_add(*degree).ok_or_else(|| Error::new(ARG, "the degrees are too large"))
        })?;
        let weights = Weights(weights);
        let edges = weights.of(destinations.all(total)?)?;
        let topology = Topology::DistGraph {
            sources: edges.clone(),
            destinations: edges,
            is_weighted: weights.are_given(),
        };
        new.put(communicators::make(comm, Some(topology))?)
    };
    MPI_Dist_graph_neighbors_count(
        comm: c_int, indegree: Out<c_int>, outdegree: Out<c_int>, weighted: Out<c_int>,
    ) on comm => match topology(comm)? {
        Topology::DistGraph { sources, destinations, is_weighted } => {
            indegree.put(sources.len() as c_int)?;
            outdegree.put(destinations.len() as c_int)?;
            weighted.put(is_weighted.into())
        }
        _ => Err(Error::new(TOPOLOGY, "the communicator has no distributed graph topology")),
    };
    MPI_Dist_graph_neighbors(
        comm: c_int, max_indegree: c_int, sources: Out<c_int>, source_weights: Out<c_int>,
        max_outdegree: c_int, destinations: Out<c_int>, destination_weights: Out<c_int>,
    ) on comm => match topology(comm)? {
        Topology::DistGraph { sources: from, destinations: to, is_weighted } => {
            put_edges(&from, max_indegree, sources, source_weights, is_weighted)?;
            put_edges(&to, max_outdegree, destinations, destination_weights, is_weighted)
        }
        _ => Err(Error::new(TOPOLOGY, "the communicator has no distributed graph topology")),
    };
}
