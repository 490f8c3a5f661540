#pragma once
// A link between stages whose two ends are GPUs: by NCCL, so that hidden states never pass through memory of
// the host, and neither host waits. Where NCCL cannot be had, the link through the host's memory stays.
//
// The two ends meet by the link through the host first, and agree there: both have NCCL, their GPUs differ
// (NCCL refuses a shared device), both have joined, and a first message has arrived with its bytes.
// Afterwards the link through the host carries no data: it tells that an end died or was aborted, and why. A
// watchdog (group_watch.h) then aborts NCCL, so that what waits on the device leaves the device, and a wait
// for the device returns; status() says why.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "worker/comm/group_options.h"
#include "worker/comm/nccl_api.h"
#include "worker/comm/stage_link.h"

namespace somnus {

// Returns a stream-ordered link, or `host`; both ends get the same. Blocks until the ends agree. `options`:
// of the link's group of two ranks, with the unique id of the link's own NCCL group, and the stream. `gpu`
// names the GPU on its host. `nccl`: the loaded library, or why there is none. Library and device must
// outlive the link. Errors are those of `host`; Aborted: cancelled.
absl::StatusOr<std::unique_ptr<StageLink>> JoinDeviceLink(const GroupOptions& options, const std::string& gpu,
                                                          Device* device, std::unique_ptr<StageLink> host,
                                                          absl::StatusOr<const NcclApi*> nccl);

}  // namespace somnus
