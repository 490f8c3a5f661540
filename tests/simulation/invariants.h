#pragma once
// The invariants between a simulated engine and the workers: the engine's published state, sizes and bytes
// agree with every rank of the engine's epoch.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/engine/engine.h"
#include "coordinator/executor/grpc_executor.h"
#include "coordinator/flags/flags.h"
#include "proto/model.pb.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

class Invariants {
 public:
  // `executors` are by replica, whose groups of ranks are numbered from `first_group` on. `changes_weights`
  // says whether a change of the weights is under way.
  Invariants(Site* site, const Flags* flags, const Faults* faults, const Engine* engine,
             std::vector<GrpcExecutor*> executors, std::function<bool()> changes_weights, int first_group = 0)
      : site_(*site),
        world_(site->world),
        flags_(*flags),
        faults_(*faults),
        engine_(*engine),
        executors_(std::move(executors)),
        changes_weights_(std::move(changes_weights)),
        first_group_(first_group) {}

  // Every tag of every rank is in the state that the engine says, and so are the bytes and the sizes of
  // caches. To be called when no lifecycle call is under way. While steps are under way, swaps may have taken
  // host memory that the engine has not heard of yet; `quiet`: no step is under way.
  void CheckResidency(bool quiet = false);
  // The published state is the true state. To be called within every change of the state, in
  // World::LookAround.
  void CheckState();

 private:
  struct Member {
    int pid = 0;
    v1::WorkerSnapshot snapshot;
    v1::WorkerStatusResponse status;
  };

  // The engine is awake or asleep, with all replicas, and nothing is known to be lost.
  bool IsAtRest(const EngineStats& stats) const;
  bool IsWell(EngineState state, int replica) const;
  std::vector<Member> Members(int replica, int64_t epoch) const;
  void CheckGroup(int replica, EngineState state, const EngineStats& stats, int64_t* version);
  void CheckTags(const Member& member, const EngineStats& stats);
  void CheckVersion(const Member& member, int64_t* common);
  void CheckSize(const Member& member, int32_t mapped_blocks);
  void CheckHostTier(const Member& member);
  void CheckDisk(const Member& member);
  bool MayBeAwake(const Member& member, EngineState state) const;
  void Violate(const Member& member, const std::string& what);

  Site& site_;
  World& world_;
  const Flags& flags_;
  const Faults& faults_;
  const Engine& engine_;
  const std::vector<GrpcExecutor*> executors_;
  const std::function<bool()> changes_weights_;
  const int first_group_;
  EngineState last_state_ = EngineState::kLoading;
  bool cache_sleeps_ = false;  // when the engine was at rest last
};

}  // namespace somnus::simulation
