#include "coordinator/several_models/carrier_threads.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "base/threads.h"

namespace somnus {

bool CarrierThreads::Carry(std::function<void()> work) {
  auto carrier = std::make_unique<Carrier>();
  absl::StatusOr<std::thread> thread = StartThread([this, carrier = carrier.get(), work = std::move(work)] {
    work();
    {
      absl::MutexLock lock(&mu_);
      carrier->has_ended = true;
    }
    on_end_();
  });
  if (!thread.ok()) {
    LogWarning("{}", std::string(thread.status().message()));
    return false;
  }
  carrier->thread = *std::move(thread);
  absl::MutexLock lock(&mu_);
  carriers_.push_back(std::move(carrier));
  return true;
}

void CarrierThreads::JoinEnded() {
  absl::MutexLock lock(&mu_);
  std::erase_if(carriers_, [](const std::unique_ptr<Carrier>& carrier) {
    if (carrier->has_ended) carrier->thread.join();
    return carrier->has_ended;
  });
}

void CarrierThreads::Join() {
  std::vector<std::unique_ptr<Carrier>> carriers;
  {
    absl::MutexLock lock(&mu_);
    carriers.swap(carriers_);
  }
  for (const std::unique_ptr<Carrier>& carrier : carriers) carrier->thread.join();
}

}  // namespace somnus
