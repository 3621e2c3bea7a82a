//! The connections between GPUs: topology, NVLinks, fabric.

#![expect(unsafe_code, reason = "exported names, and raw pointers from C")]

use super::identity::pci_info;
use crate::answer::{calls, device, put, version_of};
use crate::code::Code;
use crate::gpu::{Board, small, whole};
use crate::scenario::{LinkPath, ReadingKind};
use crate::state::{Subject, View, enter};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t, nvmlPciInfo_t};
use std::ffi::{c_uchar, c_uint, c_ulonglong};

/// The PCI bus id of the first NVSwitch.
const SWITCH_BUS_ID: &str = "00000000:C4:00.0";
/// The type of device at the far end of a link.
const REMOTE_IS_GPU: c_uint = 0;
const REMOTE_IS_SWITCH: c_uint = 2;
const REMOTE_IS_UNKNOWN: c_uint = 255;

/// NVML's topology level of a connection.
fn level(path: LinkPath) -> c_uint {
    match path {
        LinkPath::Psb => 0,
        LinkPath::Pix => 10,
        LinkPath::Pxb => 20,
        LinkPath::Phb => 30,
        LinkPath::Node => 40,
        LinkPath::Sys => 50,
    }
}

/// The connection of two GPUs: from the file, at either end, else depending on whether they share a NUMA node.
fn common(one: &Board, other: &Board) -> c_uint {
    let of_file =
        |from: &Board, to: &Board| from.spec.links.iter().find(|link| link.peer == to.place).map(|link| link.path);
    let usual = if one.numa_node == other.numa_node { LinkPath::Node } else { LinkPath::Sys };
    level(of_file(one, other).or_else(|| of_file(other, one)).unwrap_or(usual))
}

/// The GPU at the far end of a link that is up; `None` means a switch.
fn far_end(view: &View, link: c_uint) -> Result<Option<&Board>, Code> {
    let board = view.board()?;
    if link >= 18 {
        return Err(Code::INVALID_ARGUMENT);
    }
    if link >= small(board.read(ReadingKind::NvlinksActive, view.time)?) {
        return Err(Code::NOT_SUPPORTED);
    }
    let mut first = 0;
    for tie in &board.spec.links {
        if (first..first + tie.nvlinks).contains(&link) {
            return view.boards.get(tie.peer as usize).map(Some).ok_or(Code::NOT_FOUND);
        }
        first += tie.nvlinks;
    }
    if board.profile.nvlinks.2 { Ok(None) } else { Err(Code::NOT_SUPPORTED) }
}

calls! {
    fn nvmlDeviceGetTopologyCommonAncestor(
        handle: nvmlDevice_t, other: nvmlDevice_t, path: *mut c_uint,
    ) of device(handle); |view| {
        let other = enter("nvmlDeviceGetTopologyCommonAncestor", &device(other))?;
        put(path, common(view.board()?, other.board()?))
    }

    fn nvmlDeviceGetNvLinkState(handle: nvmlDevice_t, link: c_uint, active: *mut c_uint) of device(handle); |view| {
        let board = view.board()?;
        if link >= 18 {
            return Err(Code::INVALID_ARGUMENT);
        }
        if link >= board.profile.nvlinks.0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let up = link < small(view.read(ReadingKind::NvlinksActive)?) && !board.link(link)?.down;
        put(active, c_uint::from(up))
    }

    fn nvmlDeviceGetNvLinkErrorCounter(
        handle: nvmlDevice_t, link: c_uint, counter: c_uint, errors: *mut c_ulonglong,
    ) of device(handle); |view| {
        let board = view.board()?;
        // On Hopper and later, the error counters are fields of `nvmlDeviceGetFieldValues`.
        if board.profile.architecture >= 9 {
            return Err(Code::NOT_SUPPORTED);
        }
        let link = board.link(link)?;
        let counts = [link.replay, link.recovery, link.crc_flit, link.crc_data];
        put(errors, counts.get(counter as usize).copied().ok_or(Code::INVALID_ARGUMENT)?.into())
    }

    fn nvmlDeviceGetGpuFabricInfoV(handle: nvmlDevice_t, to: *mut nvmlGpuFabricInfoV_t) of device(handle); |view| {
        if to.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // The first three members are the same in every version.
        let second = (*to).version == version_of::<nvmlGpuFabricInfo_v2_t>(2);
        let third = (*to).version == version_of::<nvmlGpuFabricInfoV_t>(3) && view.driver() >= 570;
        if !second && !third {
            return Err(Code::VERSION_MISMATCH);
        }
        (*to).state = c_uchar::try_from(small(view.read(ReadingKind::FabricState)?)).unwrap_or(c_uchar::MAX);
        (*to).status = small(view.read(ReadingKind::FabricStatus)?);
        (*to).clusterUuid = u128::from(whole(view.read(ReadingKind::FabricCluster)?)).to_be_bytes();
        (*to).cliqueId = small(view.read(ReadingKind::FabricClique)?);
        (*to).healthMask = small(view.read(ReadingKind::FabricHealth)?);
        if third {
            (*to).healthSummary = c_uchar::try_from(small(view.read(ReadingKind::FabricSummary)?)).unwrap_or(c_uchar::MAX);
        }
        Ok(())
    }

    fn nvmlDeviceGetNvLinkVersion(handle: nvmlDevice_t, link: c_uint, version: *mut c_uint) of device(handle); |view| {
        far_end(&view, link)?;
        put(version, view.board()?.profile.nvlinks.1)
    }

    fn nvmlDeviceGetNvLinkCapability(
        handle: nvmlDevice_t, link: c_uint, _capability: c_uint, result: *mut c_uint,
    ) of device(handle); |view| {
        far_end(&view, link)?;
        put(result, 1)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
        handle: nvmlDevice_t, link: c_uint, pci: *mut nvmlPciInfo_t,
    ) of device(handle); |view| {
        put(pci, match far_end(&view, link)? {
            Some(board) => pci_info(&board.pci_bus_id, board.profile.pci_device),
            None => pci_info(SWITCH_BUS_ID, 0x22a3_10de),
        })
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(
        handle: nvmlDevice_t, link: c_uint, kind: *mut c_uint,
    ) of device(handle); |view| {
        put(kind, match far_end(&view, link) {
            Ok(Some(_)) => REMOTE_IS_GPU,
            Ok(None) => REMOTE_IS_SWITCH,
            Err(Code::NOT_SUPPORTED) => REMOTE_IS_UNKNOWN,
            Err(error) => return Err(error),
        })
    }

    fn nvmlDeviceOnSameBoard(one: nvmlDevice_t, other: nvmlDevice_t, same: *mut std::ffi::c_int) of device(one); |view| {
        view.board()?;
        put(same, std::ffi::c_int::from(one == other))
    }

    fn nvmlDeviceGetP2PStatus(
        one: nvmlDevice_t, other: nvmlDevice_t, _index: c_uint, status: *mut c_uint,
    ) of device(one); |view| {
        view.board()?;
        enter("nvmlDeviceGetP2PStatus", &Subject::Handle(other as usize))?;
        put(status, 0)
    }
}
