#pragma once
// A decorator of an Engine that resolves the names of adapters (LoRA): a request with an adapter_name gets
// the adapter that the workers hold under the name. Where the workers have forgotten the adapter, the request
// waits here until the adapter was read again (AdapterRegistry::Bring), within the bounds of a queue.
// Deadlines and aborts hold meanwhile. Where the files have changed or gone, the client gets an error.
// Requests without an adapter, and requests whose adapter is held, go to the engine below at once.
//
// Ownership: shares the engine below and the registry. Owns two threads: one brings the adapters, one by one,
// and one ends aborted and expired requests meanwhile. Both threads end with DrainAndStop, which the
// destructor calls without grace. Thread safety: as engine.h says. While mu_ is held, the engine below is
// asked for its state alone. Timed waits are by StopSignal, since the timeouts of an absl::Mutex end by wall
// time (base/monotonic.h).

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/adapters/adapter_registry.h"
#include "coordinator/adapters/adapter_waits.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_observer.h"
#include "coordinator/engine/queue_room.h"

namespace somnus {

class AdapterEngine : public Engine {
 public:
  // `limits`: of the requests that wait for adapters. `observer`, borrowed and maybe null, hears of requests
  // that end here.
  AdapterEngine(std::shared_ptr<Engine> engine, std::shared_ptr<AdapterRegistry> registry,
                const QueueLimits& limits, EngineObserver* observer);
  ~AdapterEngine() override;

  // NotFound, too: no adapter has the name. DataLoss, Unavailable, too: the adapter could not be read just
  // now.
  absl::Status SubmitAll(std::vector<EngineRequest> requests) override;
  void Abort(const std::string& request_id) override;
  EngineState state() const override { return engine_->state(); }
  absl::Status Health() const override;
  void OnStateChange(std::function<void()> callback) override { engine_->OnStateChange(std::move(callback)); }
  // Requests that wait here wait.
  EngineStats Stats() const override;
  EngineViews View() override { return engine_->View(); }
  LifecycleResult Run(const LifecycleRequest& request) override { return engine_->Run(request); }
  PinnedPrefixes& pinned_prefixes() override { return engine_->pinned_prefixes(); }
  void DrainAndStop(absl::Duration grace) override;
  int32_t max_model_len() const override { return engine_->max_model_len(); }
  int32_t vocab_size() const override { return engine_->vocab_size(); }

 private:
  using Requests = AdapterWaits::Requests;

  // Waits until no request waits here, until `deadline` or until a stop.
  void AwaitEnd(MonotonicTime deadline) const;
  void BringAdapters();
  // Calls the sinks of aborted requests: a caller of Abort may hold locks that a sink takes.
  void EndWaits();
  void EndAborted();
  void EndExpired();
  bool IsWanted(const std::string& name) const;
  // Submits, or ends, the requests that wait for the adapter, as long as the name stands for the load that
  // was brought: requests that come after another load, or after an unload, wait on. False: the engine has no
  // room for some requests, which wait on.
  bool Settle(const std::string& name, const AdapterRegistry::Brought& brought);
  // The next requests to settle, which are moving_ from now on. Empty: there are none.
  Requests TakeNext(const std::string& name, const std::string& load);
  bool SubmitWaiting(Requests requests, const AdapterRegistry::Adapter& adapter);
  // Removes the request from moving_. True: the request was aborted in between.
  bool EndMove(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Requests that Settle has taken wait again. False: nothing waits any more.
  bool PutBack(Requests* requests);
  // Ends requests that have left waits_.
  void End(Requests requests, FinishReason reason, const absl::Status& error);
  bool IsMoving(const std::string& name) const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !moving_.empty() && moving_name_ == name;
  }
  bool MayEnd() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return waits_.empty() && moving_.empty(); }
  bool MayBring() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopped_ || !waits_.empty(); }

  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<AdapterRegistry> registry_;
  EngineObserver* const observer_;

  mutable absl::Mutex mu_;
  AdapterWaits waits_ ABSL_GUARDED_BY(mu_);
  // By id of a request on the way from waits_ to the engine below: whether the request was aborted since.
  absl::flat_hash_map<std::string, bool> moving_ ABSL_GUARDED_BY(mu_);
  std::string moving_name_ ABSL_GUARDED_BY(mu_);  // the adapter of all of these requests
  Requests aborted_ ABSL_GUARDED_BY(mu_);         // that have left waits_, and have not ended
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  // For EndWaits: stops where waits_ or aborted_ has changed, and is made anew by EndWaits.
  std::shared_ptr<StopSignal> news_ ABSL_GUARDED_BY(mu_) = std::make_shared<StopSignal>();
  StopSignal stop_;  // stops with stopped_

  absl::Mutex join_mu_;
  std::thread bringer_ ABSL_GUARDED_BY(join_mu_), ender_ ABSL_GUARDED_BY(join_mu_);
};

}  // namespace somnus
