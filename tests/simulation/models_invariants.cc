#include "tests/simulation/models_invariants.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/worker.h"

namespace somnus::simulation {

template <typename Bytes>
int64_t ModelsInvariants::SumOverRanks(const Bytes& bytes) const {
  std::map<std::pair<int, int>, int64_t> of_rank;
  for (const auto& [pid, process] : site_.workers) {
    if (!world_.alive(pid)) continue;
    int64_t& most = of_rank[{process.group, process.rank}];
    most = std::max(most, bytes(process));
  }
  int64_t sum = 0;
  for (const auto& [rank, count] : of_rank) sum += count;
  return sum;
}

void ModelsInvariants::CheckDeviceMemory() {
  const int64_t bytes = SumOverRanks([](const WorkerProcess& process) { return process.device_bytes; });
  if (bytes > budgets_.device_memory_budget)
    world_.Violate(absl::StrCat("the models hold ", bytes, " bytes of device memory, and the budget is ",
                                budgets_.device_memory_budget));
}

void ModelsInvariants::CheckHostMemory() {
  std::string holders;
  const int64_t bytes = SumOverRanks([&](const WorkerProcess& process) {
    if (process.worker == nullptr) return int64_t{0};
    int64_t sum = 0;
    const v1::WorkerStatusResponse status = process.worker->GetStatus();
    for (const auto& [tag, count] : status.host_bytes_by_tag()) {
      sum += count;
      if (count > 0) absl::StrAppend(&holders, " model ", process.group, ": ", count, " of ", tag, ";");
    }
    return sum;
  });
  if (bytes > budgets_.host_memory_budget)
    world_.Violate(absl::StrCat("the models hold ", bytes, " bytes of host memory, and the budget is ",
                                budgets_.host_memory_budget, ":", holders));
}

void ModelsInvariants::CheckAsleep(int model) {
  for (const auto& [pid, process] : site_.workers) {
    const bool is_member = process.group == model && world_.alive(pid) && !process.may_end;
    if (!is_member || process.device_bytes == 0) continue;
    world_.Violate(absl::StrCat(world_.name(pid), " holds ", process.device_bytes,
                                " bytes of device memory, and its model sleeps"));
  }
}

}  // namespace somnus::simulation
