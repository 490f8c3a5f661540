#pragma once
// The adapters (LoRA) of a served model: which names clients may use, and which adapters the workers hold.
//
// A load sends the adapter to the workers first, and then shows the name. There may be more names than the
// workers have places: where all places are taken, the least recently used adapter is forgotten. The name of
// a forgotten adapter stays, and Bring has the same files read again; changed files are an error. An adapter
// with open requests keeps the place until the requests end. Meanwhile new requests for the adapter wait, so
// that the place does become free, but only while somebody waits for a place.
//
// An unload hides the name first, waits for the adapter's open requests, and then takes the adapter from the
// workers. Where a load replaces an adapter of the same name, open requests end with the replaced adapter.
//
// Thread safe. Load, Unload and Bring block, and change the workers one at a time. No other call waits for a
// change.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine.h"
#include "coordinator/request/request_adapter.h"

namespace somnus {

struct AdapterRegistryOptions {
  int32_t max_adapters = 1;                          // that the workers hold at once
  int32_t max_loras = 1;                             // in one step; for metrics
  absl::Duration unload_timeout = absl::Minutes(1);  // for open requests of an adapter that goes
  absl::Duration retry_pause = absl::Seconds(1);     // after a failed read no other read is tried
  absl::Duration ready_timeout = absl::Minutes(1);   // of requests with workers that are not ready
  int32_t max_names = 16'384;                        // of adapters, held or forgotten
};

// A snapshot of one adapter.
struct AdapterCard {
  std::string name;
  std::string path;
  bool held = false;  // by the workers
  int32_t num_running = 0;
  int32_t num_waiting = 0;  // for a step, or for a place
};

class AdapterRegistry {
 public:
  using Adapter = std::shared_ptr<const RequestAdapter>;
  static constexpr size_t kMaxNameBytes = 256;
  static constexpr size_t kMaxPathBytes = 4096;

  // How Bring has ended.
  struct Brought {
    absl::StatusOr<Adapter> adapter;
    std::string load;  // as LoadOf: the load that `adapter` is of, the error included
  };

  // `engine` is shared.
  AdapterRegistry(std::shared_ptr<Engine> engine, const AdapterRegistryOptions& options);
  ~AdapterRegistry();
  AdapterRegistry(const AdapterRegistry&) = delete;

  // InvalidArgument names lora_name or lora_path; AlreadyExists: the name is loaded, and `in_place` is false;
  // ResourceExhausted: there are max_names; DeadlineExceeded: no place became free in time; else the engine's
  // error, which names the tensor or the key. After an error the names have not changed.
  absl::Status Load(const std::string& name, const std::string& path, bool in_place);
  // NotFound; DeadlineExceeded: requests have not ended in time, and the adapter stays. After an error of the
  // engine the name is no longer served, and the workers keep the adapter until the next change of adapters.
  absl::Status Unload(const std::string& name);

  // The adapter for a request that comes now. Null: the adapter has to be brought first. An error: NotFound,
  // or the error of a Bring that has failed just now.
  absl::StatusOr<Adapter> Acquire(const std::string& name);
  // Has the workers read an adapter that the workers do not hold. Waits for a place as long as `wanted`,
  // which is called often and without a lock, returns true. Null: the workers were not ready, and the caller
  // may call again, after calls for other adapters. NotFound: no such name; Cancelled: no longer wanted;
  // DataLoss: the files have changed, have gone or cannot be read; Unavailable: the workers were not ready
  // for too long. Errors are for clients, and the log has the cause. The name may stand for another load by
  // the time that the caller looks: the result is of use while LoadOf returns the result's load.
  Brought Bring(const std::string& name, const std::function<bool()>& wanted);
  // The load that the name stands for now: each Load has another one. Empty: no such name.
  std::string LoadOf(const std::string& name) const;
  // `count` more, or fewer, requests wait for Bring. Counts belong to names: an unload does not change them.
  void NoteWaiting(const std::string& name, int32_t count);

  bool Knows(const std::string& name) const;
  int32_t max_loras() const { return options_.max_loras; }
  int64_t num_reads_again() const;
  // By name.
  std::vector<AdapterCard> List() const;

 private:
  struct Known {
    std::string path;
    std::string fingerprint;
    std::string salt;                                  // no other load has the same
    Adapter adapter;                                   // null: the adapter is forgotten
    std::shared_ptr<const std::atomic<bool>> dropped;  // HeldAdapter::dropped of `adapter`
    int64_t last_use = 0;                              // larger: later
    // Set while requests wait, and the workers are not ready.
    MonotonicTime give_up = absl::InfiniteDuration();
    absl::Status error;  // of the last Bring, until retry_at
    MonotonicTime retry_at;

    bool is_dropped() const { return adapter != nullptr && dropped->load(); }
  };
  // An adapter that the workers hold. `unused` stops when the last shared pointer to the adapter ends.
  struct Held {
    HeldAdapter adapter;
    std::shared_ptr<StopSignal> unused;
    std::weak_ptr<const RequestAdapter> shared;
  };

  // For the call that holds call_mu_:
  // Takes the name away. NotFound: there is no such name.
  absl::StatusOr<Known> Hide(const std::string& name);
  absl::Status CheckLoad(const std::string& name, const std::string& path, bool in_place) const;
  // A place for one more adapter: where no place is free, the least recently used adapter is forgotten. 0:
  // every adapter has open requests; then new requests wait for one of the adapters, and *leaving stops once
  // the place of that adapter is free.
  int32_t MakeRoom(std::shared_ptr<StopSignal>* leaving) ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  void ForgetOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  void ForgetDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  // A slot without an adapter; 0: every slot has an adapter.
  int32_t FreeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  // Removes adapters that no request uses any more from held_.
  void EndUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  // Has the workers hold one more adapter, and sets the fingerprint and the adapter of `known`.
  absl::Status Read(const std::string& name, int32_t slot, Known* known)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  // Sets the adapter of `known` if the workers still hold the adapter of that load for open requests, and no
  // other adapter waits for a place.
  bool Restore(const std::string& name, Known* known) ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  // Tells the workers which adapters to hold: held_ and `added`.
  absl::StatusOr<TransitionReport> Tell(const Held* added) ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  Brought TryToBring(const std::string& name, std::shared_ptr<StopSignal>* leaving);
  absl::StatusOr<Adapter> BringKnown(const std::string& name, Known* known,
                                     std::shared_ptr<StopSignal>* leaving)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  // The name's entry while the name stands for this load; else null.
  Known* Find(const std::string& name, const std::string& load) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The workers were not ready to read the adapter. False: for too long, or the name stands for another load.
  bool MayRetry(const std::string& name, const std::string& load);
  // Returns the error for clients of a failed Bring, which Acquire returns for retry_pause. `of_workers`: the
  // workers are at fault, and not the files.
  absl::Status NoteFailure(const std::string& name, const Brought& failed, bool of_workers);

  const std::shared_ptr<Engine> engine_;
  const AdapterRegistryOptions options_;
  std::atomic<int32_t> num_loads_{0};  // under way
  absl::Mutex call_mu_;
  std::vector<Held> held_ ABSL_GUARDED_BY(call_mu_);  // by the workers
  mutable absl::Mutex mu_ ABSL_ACQUIRED_AFTER(call_mu_);
  std::map<std::string, Known> known_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, int32_t> waiting_ ABSL_GUARDED_BY(mu_);  // requests by name; none is 0
  int64_t num_uses_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_reads_again_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace somnus
