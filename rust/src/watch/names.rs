//! Directory in MPI's name service, which MPICH's launchers and Slurm's PMI-2 offer.

use std::env;

use super::directory::{Closed, Directory};
use crate::mpi::calls::NameService;
use crate::mpi::{Abi, call_in_background};

/// Published names of the processes of a job.
pub struct Names<A: Abi> {
    service: NameService<A>,
    /// Common prefix of all names of this job.
    prefix: String,
    rank: i32,
}

/// Environment variables by which launchers identify a job: several jobs may share a name service.
const JOB: [&str; 4] = [
    "PMI_JOBID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "I_MPI_HYDRA_UUID",
];

impl<A: Abi> Names<A> {
    /// Names for a job of `size` ranks, in which this process has `rank`.
    pub fn new(service: NameService<A>, rank: i32, size: i32) -> Self {
        let job: Vec<String> = JOB.iter().flat_map(env::var).collect();
        Self {
            service,
            prefix: format!("mpi4jax.{}.{size}", job.join(".")),
            rank,
        }
    }

    fn name(&self, rank: i32) -> String {
        format!("{}.{rank}", self.prefix)
    }
}

impl<A: Abi> Directory for Names<A> {
    fn publish(&self, text: &str) -> Result<(), String> {
        let publish = || self.service.publish(&self.name(self.rank), text);
        call_in_background(publish).unwrap_or_else(|| Err("MPI was finalised".to_owned()))
    }

    fn look_up(&self, rank: i32) -> Result<Option<String>, Closed> {
        call_in_background(|| self.service.look_up(&self.name(rank))).ok_or(Closed)
    }
}
