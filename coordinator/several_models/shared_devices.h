#pragma once
// Several models on the same devices: a thread that carries out what residency_policy.h decides.
//
// Each model has an engine of its own, which Add wraps: the wrapper counts requests, so that a model that
// sleeps is woken for them, and keeps what an operator asked for. An operator's sleep ends by an operator's
// wake-up, unless `arrivals` is kWake; an operator's wake-up waits for room as requests do, but not for ever.
//
// An operator's sleep at level 1 gets host memory for its backup before it begins: backups that nobody has
// asked for are dropped for it, the least recently used first. Where that does not suffice it is refused.
//
// An operator may wake a model in part, for the steps of an update: as much room as its tags need is made,
// and what is awake stays so until an operator's next call. A reload or an update wakes the weights of a
// model that sleeps by nobody's word, and holds its memory until it has ended. Stale weights, and other tags
// that nothing can be computed with, give their memory to whoever waits.
//
// A request is counted before its engine has it, so one that comes between the decision to sleep and the
// sleep is seen by the decision or by the sleep. A wake-up that fails is tried again after growing pauses,
// and after a few failures requests get the error (wake_retries.h); a sleep that fails makes the model stay
// for a while. Every decision is logged, and told to `on_decision`.
//
// When an engine has failed, the model is brought up again (shared_devices_transitions.cc): after a pause
// that doubles with every failure, or by an operator's call. The model comes back asleep, without device
// memory.
//
// Elastic KV caches (shared_devices_kv.cc): models that are awake together share the memory of their caches
// as kv_shares.h decides. It is asked whenever something has happened, and every kv_period while requests are
// open; before a model is put to sleep for one that waits, what other caches do not need is taken for it.
//
// Ownership: what Add returns owns the model's engine, and must live until Stop has returned; this object
// must outlive both. Observers are borrowed as long. Thread safety: Add, MakeRoom, Start and Stop are for one
// thread, the wrappers as engine.h says. mu_ is never held while an engine is called, but for its state and
// its Stats.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/engine/auto_sleep_engine.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/replicas/retry_backoff.h"
#include "coordinator/residency/wake_retries.h"
#include "coordinator/several_models/kv_shares.h"
#include "coordinator/several_models/request_deadlines.h"
#include "coordinator/several_models/residency_policy.h"
#include "coordinator/several_models/shared_devices_options.h"

namespace somnus {

// When weights that sleep at level 1 take memory of the host.
enum class BackupMemory {
  kAlways,
  kOnlyCopy,  // unless a checkpoint has them, whose files are the backup then: the wake-up reads them
  kNever,
};

// How long the first request for a model that slept has waited until it was awake.
struct ModelSwitch {
  absl::Duration room;  // until its wake-up began: others had their turn, and slept
  absl::Duration wake_up;
};

struct SharingModel {
  std::string name;
  bool pinned = false;
  int priority = 0;
  TokenTargets targets;                                  // for ResidencyPolicy::kSlo
  absl::Duration idle_sleep = absl::InfiniteDuration();  // as of ModelView, and likewise
  int idle_level = 1;
  BackupMemory backup_memory = BackupMemory::kAlways;
  // Whether its KV cache shrinks and grows. Of all its workers together: what the cache keeps at least, and
  // in how many rows it lies, each of whole chunks of memory (SleepableAllocator::AllocateRows).
  bool elastic_kv = false;
  int64_t min_kv_bytes = 0;
  int64_t num_kv_rows = 0;
  int64_t kv_block_bytes = 0;  // of one replica's workers together; 0: it is told from the cache
  // Called on a thread of SharedDevices; must not block. May be empty. on_resize: of its KV cache, when it is
  // decided. on_switch: a model has woken for requests.
  std::function<void(const ResidencyDecision&)> on_decision;
  std::function<void(bool grows, KvResizeReason reason)> on_resize;
  std::function<void(const ModelSwitch&)> on_switch;
};

class SharedDevices {
 public:
  using MakeEngine = AutoSleepEngine::MakeEngine;

  explicit SharedDevices(SharedDevicesOptions options);
  ~SharedDevices();

  // `make` makes the model's engine, in whatever state its workers are: nobody is taken to have asked for it.
  // The result is what clients and operators call.
  std::shared_ptr<Engine> Add(SharingModel model, EngineObserver* observer, const MakeEngine& make);
  // All models that were added sleep, so that another one can be loaded.
  absl::Status MakeRoom();
  // From now on it decides. InvalidArgument: a model is larger than the budget.
  absl::Status Start();
  // Nothing is decided any more. To be called after the engines were drained.
  void Stop();

 private:
  class Observer;
  // Of a model whose KV cache is elastic. Blocks do not count the null block.
  struct KvState {
    int64_t block_bytes = 0;  // 0: it is not
    int64_t cache_bytes = 0;  // of the whole cache
    int64_t slack_bytes = 0;  // that a part of the cache may take beyond its blocks
    int64_t other_bytes = 0;  // of device memory, beside the cache
    int32_t min_blocks = 0;
    int32_t max_blocks = 0;
    int32_t mapped_blocks = 0;
    int64_t resident_bytes = 0;  // of the cache
    int32_t needed_blocks = 0;   // the most of the last kv_hold, or since
    MonotonicTime needed_at = -absl::InfiniteDuration();
    std::optional<int32_t> target;  // of the resize that is under way
    MonotonicTime resized_at = -absl::InfiniteDuration();
  };
  // An operator's wake-up, of these tags; empty: all.
  struct OperatorWake {
    std::vector<std::string> tags;
    std::optional<bool> load_weights;
    bool stages = false;    // what it leaves half awake is the operator's
    bool was_held = false;  // before it came: Model::held_asleep
    int64_t id = 0;
    std::optional<absl::StatusOr<TransitionReport>> result;  // set: it has ended
  };
  struct Model {
    int index = 0;  // as the policy names it
    SharingModel options;
    std::unique_ptr<Observer> observer;
    std::optional<RequestDeadlines> deadlines;  // after Add
    Engine* engine = nullptr;                   // owned by what Add has returned
    int64_t num_open = 0;                       // requests
    std::optional<OperatorWake> wanted;         // by its caller, who waits and resets it
    bool held_asleep = false;
    bool staged = false;    // operators have put it to sleep, or woken it, in part
    int64_t num_holds = 0;  // operators' calls that need its memory
    int64_t last_wake_id = 0;
    TagBytes tag_bytes;  // of device memory while it is awake, with its whole KV cache, as of Add
    int64_t device_bytes = 0;
    int64_t weights_bytes = 0;                // likewise
    int num_promised_backups = 0;             // operators' sleeps at level 1 that are under way
    int64_t promised_kept_bytes = 0;          // for their KV blocks
    bool level_is_asked = false;              // as of ModelView
    bool prefetched = false;                  // since it fell asleep
    bool stay_told = false;                   // since it woke
    std::string sleeps_for;                   // the reason of the last decision to let the model sleep
    absl::Duration sleep_time, wake_up_time;  // as last measured
    MonotonicTime waiting_since = absl::InfiniteDuration();
    MonotonicTime last_used;
    MonotonicTime awake_since;
    std::optional<WakeRetries> retries;         // after Add
    RetryBackoff revival;                       // likewise
    bool revives = false;                       // a call of Engine::Revive is under way
    std::optional<ResidencyDecision> decision;  // being carried out
    std::optional<OperatorWake> carried;        // by a decision to wake; not set: it is for requests
    int64_t decision_id = 0;
    KvState kv;
  };
  struct Carrier {
    std::thread thread;
    bool ended = false;
  };

  void Run();
  std::vector<ModelView> Views() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ModelView View(Model* model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of host memory, that a sleep at level 1 takes for the weights.
  static int64_t BackupBytes(const Model& model, const EngineStats& stats);
  static ModelState StateOf(const Model& model, EngineState state);
  // What was half awake may be awake by now.
  static void EndStage(Model* model, EngineState state);
  // That is being carried out, or waits; null: none.
  static const OperatorWake* WakeOf(const Model& model);
  // There was room for the wake-up that is wanted.
  static bool IsCarriedOut(const Model& model);
  // Of device memory, once these tags are awake, too.
  static int64_t BytesAfter(const Model& model, const EngineStats& stats, const ModelView& view,
                            const std::vector<std::string>& tags);
  // All of its memory is there.
  static bool IsResident(EngineState state);

  // Of elastic KV caches (shared_devices_kv.cc).
  void InitKv(Model* model, const EngineStats& stats) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteKv(Model* model, const EngineStats& stats) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of device memory, with a cache of so many blocks, at most.
  static int64_t DeviceBytesWith(const Model& model, int32_t blocks);
  static int64_t DeviceBytesOf(const Model& model, const ModelView& view);
  KvShareView KvView(const Model& model, const ModelView& view) const;
  // Begins what kv_shares.h decides, and makes models that will get their memory so wait in the views.
  // Returns when to look again.
  MonotonicTime ShareKv(MonotonicTime now, std::vector<ModelView>* views) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginResize(Model* model, int32_t blocks, const Model& for_model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CarryOutResize(Model* model, int32_t blocks) ABSL_LOCKS_EXCLUDED(mu_);

  // Of a decision (shared_devices_transitions.cc).
  void Begin(const ResidencyDecision& decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CarryOut(Model* model, const ResidencyDecision& decision, int64_t id) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<TransitionReport> Call(Model* model, const ResidencyDecision& decision)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Prefetch(Model* model) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns an error that ends the requests that wait for the model.
  absl::Status NoteWakeUp(Model* model, const absl::StatusOr<TransitionReport>& report, absl::Duration time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteSleep(Model* model, const absl::StatusOr<TransitionReport>& report, absl::Duration time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs `work` on a thread of its own, without mu_, and then wakes Run, which looks at the models. False: no
  // thread could be started.
  bool Carry(std::function<void()> work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void JoinEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Of the wrappers (shared_devices_calls.cc).
  absl::Status Submit(Model* model, std::vector<EngineRequest> requests);
  void NoteEnded(Model* model, int64_t num_requests);
  absl::StatusOr<TransitionReport> SleepByOperator(Model* model, const SleepRequest& request);
  // Host memory for a backup of the model's weights is free. ResourceExhausted says how much is missing.
  absl::Status MakeBackupRoom(Model* model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `stages`: what it leaves half awake is the operator's from then on.
  absl::StatusOr<TransitionReport> WakeByOperator(Model* model, const std::vector<std::string>& tags,
                                                  std::optional<bool> load_weights, bool stages);
  // Unavailable: others leave it no room now, but may later.
  absl::Status NoRoom(const Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteStage(Model* model, bool was_held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Health(const Model& model) const;
  EngineStats Stats(const Model& model) const;
  // Names of the models that hold device memory.
  std::string AwakeModels() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The revival of engines that have failed (shared_devices_transitions.cc).
  void NoteRevival(Model* model, EngineState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins the revivals that are due. Returns when the next revival is due.
  MonotonicTime ReviveDue(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Revive(Model* model) ABSL_LOCKS_EXCLUDED(mu_);

  // Of changes of the weights (shared_devices_weights.cc).
  class Hold;
  class HeldUpdate;
  absl::StatusOr<WeightsChange> ReloadByOperator(Model* model, const WeightsRequest& request);
  absl::StatusOr<std::unique_ptr<WeightUpdate>> UpdateByOperator(Model* model, const WeightsRequest& request);
  // Wakes weights that sleep by nobody's word. The model must be held.
  absl::Status BringWeights(Model* model, std::optional<bool> load_weights);

  const SharedDevicesOptions options_;
  LoopMail mail_;                               // wakes the thread
  std::vector<std::unique_ptr<Model>> models_;  // complete before Start; what they hold is guarded by mu_
  mutable absl::Mutex mu_;
  std::vector<std::unique_ptr<Carrier>> carriers_ ABSL_GUARDED_BY(mu_);
  std::multiset<MonotonicTime> waits_ ABSL_GUARDED_BY(mu_);  // when operators' wake-ups give up
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace somnus
