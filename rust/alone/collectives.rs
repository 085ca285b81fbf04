//! Collective operations of one process (MPI-3.1 §5 and §7.6): copies from one buffer to another.
//! Nonblocking ones are done at once.

use std::ffi::c_int;

use super::communicators::check_rank;
use super::datatypes::{Data, IN_PLACE};
use super::errors::{ROOT, Result};
use super::handles::state;
use super::memory::{In, Out};
use super::requests::Request;
use super::topologies;

fn check_root(root: c_int) -> Result<()> {
    check_rank(root, ROOT, "the root")
}

/// A buffer: its address, a number of elements and their type.
type Buffer = (usize, c_int, c_int);

/// Copies what the process sends to where it receives, unless one of both is `MPI_IN_PLACE`.
fn copy(from: Buffer, to: Buffer) -> Result<()> {
    move_part((from, 0), (to, 0))
}

/// Copies between buffers, each with a displacement in extents.
fn move_part((from, from_start): (Buffer, c_int), (to, to_start): (Buffer, c_int)) -> Result<()> {
    let data = |(address, count, datatype): Buffer, start: c_int| {
        // Only the elements that are there make an address invalid.
        let data = state().data(address, count, datatype)?;
        data.part(start as isize, count)
    };
    if from.0 == IN_PLACE {
        return data(to, to_start).map(|_| ());
    }
    let from = data(from, from_start)?;
    if to.0 == IN_PLACE {
        Ok(())
    } else {
        from.copy_to(&data(to, to_start)?)
    }
}

/// The result of a reduction over one process is what it sends.
fn reduce(from: usize, to: usize, count: c_int, datatype: c_int, op: c_int) -> Result<()> {
    {
        let state = state();
        let given: Data = state.data(if from == IN_PLACE { to } else { from }, count, datatype)?;
        state.operator(op, &given)?;
    }
    copy((from, count, datatype), (to, count, datatype))
}

/// Where the blocks of a neighborhood collective are: that of a slot, or the same for all.
type Blocks<'blocks> = &'blocks dyn Fn(usize) -> Result<(Buffer, isize)>;

/// Copies each block from where it is sent to where it is received, if a neighbor is there.
fn exchange(comm: c_int, from: Blocks<'_>, to: Blocks<'_>) -> Result<()> {
    let place = |((address, count, datatype), bytes): (Buffer, isize)| {
        state().data(address.wrapping_add_signed(bytes), count, datatype)
    };
    // Blocks are taken before any is written: nothing is in place, but buffers may be the same.
    for (sent, received) in topologies::pairs(comm)? {
        place(from(sent)?)?.copy_to(&place(to(received)?)?)?;
    }
    Ok(())
}

/// The blocks of equal counts, one after the other.
fn even((address, count, datatype): Buffer) -> impl Fn(usize) -> Result<(Buffer, isize)> {
    move |slot| {
        let extent = state().layout(datatype)?.extent;
        Ok((
            (address, count, datatype),
            extent * count as isize * slot as isize,
        ))
    }
}

/// The blocks of given counts and displacements.
fn uneven(
    (address, counts, displacements, datatype): (usize, In<c_int>, In<c_int>, c_int),
) -> impl Fn(usize) -> Result<(Buffer, isize)> {
    move |slot| {
        let extent = state().layout(datatype)?.extent;
        Ok((
            (address, counts.at(slot)?, datatype),
            extent * displacements.at(slot)? as isize,
        ))
    }
}

/// The blocks of given counts, displacements in bytes, and types.
fn typed(
    (address, counts, displacements, types): (usize, In<c_int>, In<isize>, In<c_int>),
) -> impl Fn(usize) -> Result<(Buffer, isize)> {
    move |slot| {
        Ok((
            (address, counts.at(slot)?, types.at(slot)?),
            displacements.at(slot)?,
        ))
    }
}

/// Declares collective functions, each with its nonblocking form, by what both do at once.
macro_rules! collectives {
    ($(
        $blocking:ident $nonblocking:ident($($argument:ident : $type:ty),* $(,)?) $comm:ident =>
            $body:expr;
    )*) => {
        mpi! {$(
            $blocking($($argument: $type,)* $comm: c_int) on $comm => $body;
            $nonblocking($($argument: $type,)* $comm: c_int, request: Out<c_int>) on $comm => {
                let done: Result<()> = $body;
                done?;
                request.put(state().requests.add(Request::done($comm)))
            };
        )*}
    };
}

collectives! {
    MPI_Barrier MPI_Ibarrier() comm => Ok(());
    MPI_Bcast MPI_Ibcast(buffer: usize, count: c_int, datatype: c_int, root: c_int) comm => {
        check_root(root).and_then(|()| state().data(buffer, count, datatype).map(|_| ()))
    };
    MPI_Gather MPI_Igather(
        from: usize, send_count: c_int, send_type: c_int,
        to: usize, recv_count: c_int, recv_type: c_int, root: c_int,
    ) comm => check_root(root).and_then(|()| {
        copy((from, send_count, send_type), (to, recv_count, recv_type))
    });
    MPI_Gatherv MPI_Igatherv(
        from: usize, send_count: c_int, send_type: c_int,
        to: usize, recv_counts: In<c_int>, displacements: In<c_int>, recv_type: c_int, root: c_int,
    ) comm => check_root(root).and_then(|()| {
        let to = (to, recv_counts.at(0)?, recv_type);
        move_part(((from, send_count, send_type), 0), (to, displacements.at(0)?))
    });
    MPI_Scatter MPI_Iscatter(
        from: usize, send_count: c_int, send_type: c_int,
        to: usize, recv_count: c_int, recv_type: c_int, root: c_int,
    ) comm => check_root(root).and_then(|()| {
        copy((from, send_count, send_type), (to, recv_count, recv_type))
    });
    MPI_Scatterv MPI_Iscatterv(
        from: usize, send_counts: In<c_int>, displacements: In<c_int>, send_type: c_int,
        to: usize, recv_count: c_int, recv_type: c_int, root: c_int,
    ) comm => check_root(root).and_then(|()| {
        let from = (from, send_counts.at(0)?, send_type);
        move_part((from, displacements.at(0)?), ((to, recv_count, recv_type), 0))
    });
    MPI_Allgather MPI_Iallgather(
        from: usize, send_count: c_int, send_type: c_int,
        to: usize, recv_count: c_int, recv_type: c_int,
    ) comm => copy((from, send_count, send_type), (to, recv_count, recv_type));
    MPI_Allgatherv MPI_Iallgatherv(
        from: usize, send_count: c_int, send_type: c_int,
        to: usize, recv_counts: In<c_int>, displacements: In<c_int>, recv_type: c_int,
    ) comm => (|| {
        let to = (to, recv_counts.at(0)?, recv_type);
        move_part(((from, send_count, send_type), 0), (to, displacements.at(0)?))
    })();
    MPI_Alltoall MPI_Ialltoall(
        from: usize, send_count: c_int, send_type: c_int,
        to: usize, recv_count: c_int, recv_type: c_int,
    ) comm => copy((from, send_count, send_type), (to, recv_count, recv_type));
    MPI_Alltoallv MPI_Ialltoallv(
        from: usize, send_counts: In<c_int>, send_displacements: In<c_int>, send_type: c_int,
        to: usize, recv_counts: In<c_int>, recv_displacements: In<c_int>, recv_type: c_int,
    ) comm => (|| {
        let to = ((to, recv_counts.at(0)?, recv_type), recv_displacements.at(0)?);
        if from == IN_PLACE {
            return move_part(((from, 0, recv_type), 0), to);
        }
        move_part(((from, send_counts.at(0)?, send_type), send_displacements.at(0)?), to)
    })();
    MPI_Alltoallw MPI_Ialltoallw(
        from: usize, send_counts: In<c_int>, send_displacements: In<c_int>, send_types: In<c_int>,
        to: usize, recv_counts: In<c_int>, recv_displacements: In<c_int>, recv_types: In<c_int>,
    ) comm => (|| {
        let at = |address: usize, displacement: In<c_int>| {
            Ok(address.wrapping_add_signed(displacement.at(0)? as isize))
        };
        if from == IN_PLACE {
            return Ok(());
        }
        let from = (at(from, send_displacements)?, send_counts.at(0)?, send_types.at(0)?);
        copy(from, (at(to, recv_displacements)?, recv_counts.at(0)?, recv_types.at(0)?))
    })();
    MPI_Reduce MPI_Ireduce(
        from: usize, to: usize, count: c_int, datatype: c_int, op: c_int, root: c_int,
    ) comm => check_root(root).and_then(|()| reduce(from, to, count, datatype, op));
    MPI_Allreduce MPI_Iallreduce(
        from: usize, to: usize, count: c_int, datatype: c_int, op: c_int,
    ) comm => reduce(from, to, count, datatype, op);
    MPI_Reduce_scatter MPI_Ireduce_scatter(
        from: usize, to: usize, counts: In<c_int>, datatype: c_int, op: c_int,
    ) comm => counts.at(0).and_then(|count| reduce(from, to, count, datatype, op));
    MPI_Reduce_scatter_block MPI_Ireduce_scatter_block(
        from: usize, to: usize, count: c_int, datatype: c_int, op: c_int,
    ) comm => reduce(from, to, count, datatype, op);
    MPI_Scan MPI_Iscan(
        from: usize, to: usize, count: c_int, datatype: c_int, op: c_int,
    ) comm => reduce(from, to, count, datatype, op);
    MPI_Exscan MPI_Iexscan(
        from: usize, to: usize, count: c_int, datatype: c_int, op: c_int,
    ) comm => {
        // The result of the first process is left as it is.
        let address = if from == IN_PLACE { to } else { from };
        reduce(IN_PLACE, address, count, datatype, op)
    };
    MPI_Neighbor_allgather MPI_Ineighbor_allgather(
        from: usize, send_count: c_int, send_type: c_int,
        to: usize, recv_count: c_int, recv_type: c_int,
    ) comm => exchange(
        comm, &|_| Ok(((from, send_count, send_type), 0)), &even((to, recv_count, recv_type)),
    );
    MPI_Neighbor_allgatherv MPI_Ineighbor_allgatherv(
        from: usize, send_count: c_int, send_type: c_int,
        to: usize, recv_counts: In<c_int>, displacements: In<c_int>, recv_type: c_int,
    ) comm => exchange(
        comm,
        &|_| Ok(((from, send_count, send_type), 0)),
        &uneven((to, recv_counts, displacements, recv_type)),
    );
    MPI_Neighbor_alltoall MPI_Ineighbor_alltoall(
        from: usize, send_count: c_int, send_type: c_int,
        to: usize, recv_count: c_int, recv_type: c_int,
    ) comm => exchange(
        comm, &even((from, send_count, send_type)), &even((to, recv_count, recv_type)),
    );
    MPI_Neighbor_alltoallv MPI_Ineighbor_alltoallv(
        from: usize, send_counts: In<c_int>, send_displacements: In<c_int>, send_type: c_int,
        to: usize, recv_counts: In<c_int>, recv_displacements: In<c_int>, recv_type: c_int,
    ) comm => exchange(
        comm,
        &uneven((from, send_counts, send_displacements, send_type)),
        &uneven((to, recv_counts, recv_displacements, recv_type)),
    );
    MPI_Neighbor_alltoallw MPI_Ineighbor_alltoallw(
        from: usize, send_counts: In<c_int>, send_displacements: In<isize>, send_types: In<c_int>,
        to: usize, recv_counts: In<c_int>, recv_displacements: In<isize>, recv_types: In<c_int>,
    ) comm => exchange(
        comm,
        &typed((from, send_counts, send_displacements, send_types)),
        &typed((to, recv_counts, recv_displacements, recv_types)),
    );
}
