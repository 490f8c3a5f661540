#pragma once
// A worker process: the product's Worker, service and link to the coordinator, over a simulated device, with
// the model of tests/fakes/fake_worker.h. Every rank computes the whole model and the ranks compare their
// results, so that a wrong block of any rank shows in the tokens. In a pipeline each stage goes on from the
// message of the stage before.

#include <cstdint>
#include <string>

#include "tests/simulation/site.h"

namespace somnus::simulation {

// The workers' fingerprint of the files at a path.
inline std::string FilesOf(const std::string& path) { return "files of " + path; }

// The device memory of a rank beside the KV cache.
constexpr int64_t kWorkspaceBytes = FakeVmmDriver::kUnit;
int64_t WeightBytesOf(const Site& site);

// The body of a worker process, as Run of worker/worker_main.cc without the parts that only a real process
// has.
void RunWorker(Site* site, int pid, const std::string& coordinator, const std::string& address);

}  // namespace somnus::simulation
