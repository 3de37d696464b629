//! The index of an OS image: made from layouts, shown, compared with a host, and with what umoci unpacks.

mod archive;
mod explained;
mod indexed;
mod layout;
mod refused;
mod unpacked;
mod world;
