#pragma once
// The adapters (LoRA) of a served model: which names clients may use, and which adapters the workers hold.
//
// A load sends the adapter to the workers first, and then shows the name. An unload hides the name first,
// waits for the adapter's open requests, and then takes the adapter from the workers. Where a load takes the
// place of an adapter of the same name, open requests end with the adapter that they began with, if both may
// be loaded; else the load waits for these requests.
//
// Thread safe. Load and Unload block, and run one at a time; Find and List do not wait for these.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine.h"
#include "coordinator/request/request_adapter.h"

namespace somnus {

struct AdapterRegistryOptions {
  int32_t max_adapters = 1;  // that the workers hold at once
  int32_t max_loras = 1;     // in one step; for metrics
  absl::Duration unload_timeout = absl::Minutes(1);
};

class AdapterRegistry {
 public:
  static constexpr size_t kMaxNameBytes = 256;
  static constexpr size_t kMaxPathBytes = 4096;

  // `engine` is shared.
  AdapterRegistry(std::shared_ptr<Engine> engine, const AdapterRegistryOptions& options);
  ~AdapterRegistry();
  AdapterRegistry(const AdapterRegistry&) = delete;

  // InvalidArgument names lora_name or lora_path; AlreadyExists: the name is loaded, and `in_place` is false;
  // ResourceExhausted: as many are loaded as may be; DeadlineExceeded: the requests of the adapter that is
  // replaced have not ended in time; else the engine's error, which names the tensor or the key. After an
  // error the adapters are those of before.
  absl::Status Load(const std::string& name, const std::string& path, bool in_place);
  // NotFound; DeadlineExceeded: requests have not ended in time, and the adapter stays. After an error of the
  // engine the name is no longer served, and the workers keep the adapter until the next call of Load or
  // Unload, which tells the workers all adapters.
  absl::Status Unload(const std::string& name);

  // Null: there is no such adapter.
  std::shared_ptr<const RequestAdapter> Find(const std::string& name) const;
  int32_t max_loras() const { return options_.max_loras; }
  // By name.
  std::vector<std::shared_ptr<const RequestAdapter>> List() const;

 private:
  // An adapter that the workers hold. `unused` stops when no request and nobody else has the adapter any
  // more.
  struct Held {
    std::weak_ptr<const RequestAdapter> adapter;
    std::shared_ptr<StopSignal> unused;
    int32_t slot = 0;
    uint64_t id = 0;
    std::string name, path;
  };
  using Adapter = std::shared_ptr<const RequestAdapter>;

  // The rest: for the call that holds call_mu_.
  int32_t FreeSlot() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  // Tells the workers what is held, and `added`, without adapters that were replaced and are not used any
  // more.
  absl::Status Tell(const Held* added) ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  Adapter Make(const std::string& name, const std::string& path, int32_t slot, Held* held) const;
  // Hides the name, and waits for the end of its requests. An error: the name is shown again.
  absl::Status Retire(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  void Show(const std::string& name, Adapter adapter);
  Adapter Hide(const std::string& name);

  const std::shared_ptr<Engine> engine_;
  const AdapterRegistryOptions options_;
  absl::Mutex call_mu_;
  std::vector<Held> held_ ABSL_GUARDED_BY(call_mu_);  // by the workers
  mutable absl::Mutex mu_;
  std::map<std::string, Adapter> shown_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
