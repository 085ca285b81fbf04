//! Functions that need more than one process, or an MPI library. They return errors.

use super::errors::{COMM, Error, NAME, PORT, SERVICE, SPAWN, UNSUPPORTED_OPERATION};

macro_rules! unsupported {
    ($($class:ident: $($name:ident)*;)*) => {
        // Their arguments aren't read: C's callers put them away themselves.
        mpi! {$($(
            $name() => Err(Error::new($class, "not available without an MPI library"));
        )*)*}
    };
}

unsupported! {
    COMM: MPI_Comm_accept MPI_Comm_connect MPI_Comm_join MPI_Comm_remote_group
        MPI_Comm_remote_size MPI_Intercomm_create MPI_Intercomm_merge;
    SPAWN: MPI_Comm_spawn MPI_Comm_spawn_multiple;
    NAME: MPI_Lookup_name;
    PORT: MPI_Close_port MPI_Open_port;
    SERVICE: MPI_Publish_name MPI_Unpublish_name;
    UNSUPPORTED_OPERATION: MPI_Accumulate MPI_Compare_and_swap MPI_Fetch_and_op
        MPI_File_call_errhandler MPI_File_close MPI_File_create_errhandler MPI_File_delete
        MPI_File_get_amode MPI_File_get_atomicity MPI_File_get_byte_offset MPI_File_get_errhandler
        MPI_File_get_group MPI_File_get_info MPI_File_get_position MPI_File_get_position_shared
        MPI_File_get_size MPI_File_get_type_extent MPI_File_get_view MPI_File_iread
        MPI_File_iread_at MPI_File_iread_shared MPI_File_iwrite MPI_File_iwrite_at
        MPI_File_iwrite_shared MPI_File_open MPI_File_preallocate MPI_File_read MPI_File_read_all
        MPI_File_read_all_begin MPI_File_read_all_end MPI_File_read_at MPI_File_read_at_all
        MPI_File_read_at_all_begin MPI_File_read_at_all_end MPI_File_read_ordered
        MPI_File_read_ordered_begin MPI_File_read_ordered_end MPI_File_read_shared MPI_File_seek
        MPI_File_seek_shared MPI_File_set_atomicity MPI_File_set_errhandler MPI_File_set_info
        MPI_File_set_size MPI_File_set_view MPI_File_sync MPI_File_write MPI_File_write_all
        MPI_File_write_all_begin MPI_File_write_all_end MPI_File_write_at MPI_File_write_at_all
        MPI_File_write_at_all_begin MPI_File_write_at_all_end MPI_File_write_ordered
        MPI_File_write_ordered_begin MPI_File_write_ordered_end MPI_File_write_shared MPI_Get
        MPI_Get_accumulate MPI_Pack_external MPI_Pack_external_size MPI_Put MPI_Raccumulate MPI_Register_datarep MPI_Rget
        MPI_Rget_accumulate MPI_Rput MPI_Type_create_darray MPI_Unpack_external MPI_Win_allocate MPI_Win_allocate_shared MPI_Win_attach
        MPI_Win_call_errhandler MPI_Win_complete MPI_Win_create MPI_Win_create_dynamic
        MPI_Win_create_errhandler MPI_Win_create_keyval MPI_Win_delete_attr MPI_Win_detach
        MPI_Win_fence MPI_Win_flush MPI_Win_flush_all MPI_Win_flush_local MPI_Win_flush_local_all
        MPI_Win_free MPI_Win_free_keyval MPI_Win_get_attr MPI_Win_get_errhandler MPI_Win_get_group
        MPI_Win_get_info MPI_Win_get_name MPI_Win_lock MPI_Win_lock_all MPI_Win_post
        MPI_Win_set_attr MPI_Win_set_errhandler MPI_Win_set_info MPI_Win_set_name
        MPI_Win_shared_query MPI_Win_start MPI_Win_sync MPI_Win_test MPI_Win_unlock
        MPI_Win_unlock_all MPI_Win_wait;
}
