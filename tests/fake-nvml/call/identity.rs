//! The identity of a GPU: UUID, name, serial, index, minor number, PCI bus id.

#![expect(unsafe_code, reason = "exported names, and raw pointers from C")]

use crate::answer::{calls, device, field, put, put_text};
use crate::code::Code;
use crate::gpu::small;
use crate::scenario::ReadingKind;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlPciInfo_t};
use std::ffi::{c_char, c_int, c_uint};

/// NVML's PCI structure of a bus id.
pub(super) fn pci_info(bus_id: &str, pci_device: u32) -> nvmlPciInfo_t {
    let mut parts = bus_id.split([':', '.']).map(|part| u32::from_str_radix(part, 16).unwrap_or(0));
    let (domain, bus, slot) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    nvmlPciInfo_t {
        busIdLegacy: field(bus_id.get(4..).unwrap_or(bus_id)),
        domain,
        bus,
        device: slot,
        pciDeviceId: pci_device,
        pciSubSystemId: 0x16c1_10de,
        busId: field(bus_id),
    }
}

calls! {
    fn nvmlDeviceGetUUID(handle: nvmlDevice_t, uuid: *mut c_char, length: c_uint) of device(handle); |view| {
        let board = view.board()?;
        match view.instance {
            Some(at) => put_text(uuid, length, &board.instances[at as usize].uuid),
            None => put_text(uuid, length, &board.uuid),
        }
    }

    fn nvmlDeviceGetName(handle: nvmlDevice_t, name: *mut c_char, length: c_uint) of device(handle); |view| {
        let board = view.board()?;
        let gpu = board.spec.name.as_deref().unwrap_or(board.profile.name);
        match view.instance {
            Some(at) => put_text(name, length, &format!("{gpu} MIG {}", board.instances[at as usize].profile)),
            None => put_text(name, length, gpu),
        }
    }

    fn nvmlDeviceGetSerial(handle: nvmlDevice_t, serial: *mut c_char, length: c_uint) of device(handle); |view| {
        put_text(serial, length, &format!("16500230{:05}", view.board()?.place))
    }

    fn nvmlDeviceGetVbiosVersion(handle: nvmlDevice_t, version: *mut c_char, length: c_uint) of device(handle); |view| {
        put_text(version, length, &format!("{}.00.74.00.1F", view.board()?.profile.architecture + 87))
    }

    fn nvmlDeviceGetIndex(handle: nvmlDevice_t, index: *mut c_uint) of device(handle); |view| {
        put(index, view.index_of(view.place.ok_or(Code::INVALID_ARGUMENT)?)?)
    }

    fn nvmlDeviceGetMinorNumber(handle: nvmlDevice_t, minor: *mut c_uint) of device(handle); |view| {
        let board = view.board()?;
        put(minor, board.spec.minor.filter(|_| board.spec.count == 1).unwrap_or(board.place))
    }

    fn nvmlDeviceGetBrand(handle: nvmlDevice_t, brand: *mut c_uint) of device(handle); |view| {
        put(brand, view.board()?.profile.brand)
    }

    fn nvmlDeviceGetArchitecture(handle: nvmlDevice_t, architecture: *mut c_uint) of device(handle); |view| {
        put(architecture, view.board()?.profile.architecture)
    }

    fn nvmlDeviceGetCudaComputeCapability(
        handle: nvmlDevice_t, major: *mut c_int, minor: *mut c_int,
    ) of device(handle); |view| {
        put(major, view.board()?.profile.capability.0)?;
        put(minor, view.board()?.profile.capability.1)
    }

    fn nvmlDeviceGetPciInfo_v3(handle: nvmlDevice_t, pci: *mut nvmlPciInfo_t) of device(handle); |view| {
        put(pci, pci_info(&view.board()?.pci_bus_id, view.board()?.profile.pci_device))
    }

    fn nvmlDeviceGetNumaNodeId(handle: nvmlDevice_t, node: *mut c_uint) of device(handle); |view| {
        put(node, view.board()?.numa_node)
    }

    fn nvmlDeviceGetNumGpuCores(handle: nvmlDevice_t, cores: *mut c_uint) of device(handle); |view| {
        put(cores, view.board()?.profile.multiprocessors * 128)
    }

    fn nvmlDeviceGetPerformanceState(handle: nvmlDevice_t, state: *mut c_uint) of device(handle); |view| {
        put(state, small(view.read(ReadingKind::PerformanceState)?))
    }

    fn nvmlDeviceGetComputeMode(handle: nvmlDevice_t, mode: *mut c_uint) of device(handle); |view| {
        put(mode, small(view.read(ReadingKind::ComputeMode)?))
    }

    fn nvmlDeviceGetPersistenceMode(handle: nvmlDevice_t, mode: *mut c_uint) of device(handle); |view| {
        put(mode, small(view.read(ReadingKind::PersistenceMode)?))
    }
}
