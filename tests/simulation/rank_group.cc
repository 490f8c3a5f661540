// JoinHostGroup and JoinHostLink for simulated ranks. Suspend and Resume wait for all ranks of the stage,
// which a communicator may do, and a rank's death is noticed within a second, as communicator.h promises.

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "tests/simulation/site.h"
#include "worker/comm/host_group.h"
#include "worker/worker.h"

namespace somnus {
namespace simulation {
namespace {

constexpr absl::Duration kCancelInterval = absl::Milliseconds(10);
constexpr absl::Duration kConnectTimeout = absl::Seconds(30);
constexpr absl::Duration kCollectiveTimeout = absl::Seconds(300);

class SimulatedCommunicator : public Communicator {
 public:
  SimulatedCommunicator(std::shared_ptr<RankGroup> group, int rank) : group_(std::move(group)), rank_(rank) {}
  ~SimulatedCommunicator() override { group_->Fail(absl::UnavailableError("a rank has left the group")); }

  int rank() const override { return rank_; }
  int world_size() const override { return group_->world_size; }
  absl::Status AllReduceSum(void*, int64_t, DataType) override {
    return absl::UnimplementedError("the simulated model only gathers");
  }
  absl::Status AllReduceAddRmsNorm(Device&, const TensorView&, const TensorView&, const float*, double,
                                   const TensorView&) override {
    return absl::UnimplementedError("the simulated model only gathers");
  }
  absl::Status AllGather(const void* in, int64_t bytes, void* out) override {
    World& world = Site::current().world;
    const int64_t number = next_round_++;
    const absl::Duration deadline = world.now() + kCollectiveTimeout;
    group_->rounds[number].data[rank_].assign(static_cast<const char*>(in), static_cast<size_t>(bytes));
    world.Wake(group_.get());
    while (group_->failure.ok() && static_cast<int>(group_->rounds[number].data.size()) < world_size()) {
      if (!world.Block(group_.get(), deadline) && world.now() >= deadline)
        group_->Fail(absl::DeadlineExceededError("a collective took too long"));
    }
    RETURN_IF_ERROR(group_->failure);
    RankGroup::Round& round = group_->rounds[number];
    char* place = static_cast<char*>(out);
    for (const auto& [rank, data] : round.data) {
      if (static_cast<int64_t>(data.size()) != bytes) {
        world.Violate(absl::StrCat("rank ", rank, " and rank ", rank_, " are in different collectives"));
        return absl::InternalError("different collectives");
      }
      std::memcpy(place, data.data(), data.size());
      place += bytes;
    }
    if (++round.num_left == world_size()) group_->rounds.erase(number);
    return absl::OkStatus();
  }
  absl::Status Barrier() override { return AllGather(nullptr, 0, nullptr); }
  void Abort(const std::string& reason) override { group_->Fail(absl::AbortedError(reason)); }
  absl::Status status() const override { return group_->failure; }
  absl::Status Suspend() override { return std::exchange(suspended_, true) ? absl::OkStatus() : Barrier(); }
  absl::Status Resume() override { return std::exchange(suspended_, false) ? Barrier() : absl::OkStatus(); }

 private:
  const std::shared_ptr<RankGroup> group_;
  const int rank_;
  int64_t next_round_ = 0;
  bool suspended_ = false;
};

// A link between two stages. The sender waits while the receiver is some messages behind.
class SimulatedLink : public StageLink {
 public:
  SimulatedLink(std::shared_ptr<RankGroup> group, int end, int pid)
      : group_(std::move(group)), is_sender_(end == kSender), self_(Site::current().workers[pid]) {}
  ~SimulatedLink() override { group_->Fail(absl::UnavailableError("the other end of a link has left")); }

  absl::Status Send(const void* data, int64_t bytes) override {
    if (!is_sender_) return absl::FailedPreconditionError("this end receives");
    Strike();
    group_->messages.emplace_back(static_cast<const char*>(data), static_cast<size_t>(bytes));
    Site::current().world.Wake(group_.get());
    return Await([this] { return group_->messages.size() <= group_->most_messages; });
  }
  absl::Status Receive(void* data, int64_t bytes) override {
    if (is_sender_) return absl::FailedPreconditionError("this end sends");
    Strike();
    RETURN_IF_ERROR(Await([this] { return !group_->messages.empty() && !group_->stalled; }));
    const std::string message = std::move(group_->messages.front());
    group_->messages.pop_front();
    World& world = Site::current().world;
    world.Wake(group_.get());
    if (static_cast<int64_t>(message.size()) != bytes) {
      world.Violate(
          absl::StrCat("a stage awaits ", bytes, " bytes, and the stage before has sent ", message.size()));
      return absl::InternalError("different messages");
    }
    std::memcpy(data, message.data(), message.size());
    return absl::OkStatus();
  }
  void Abort(const std::string& reason) override { group_->Fail(absl::AbortedError(reason)); }
  absl::Status status() const override { return group_->failure; }

 private:
  // Faults that are due.
  void Strike() {
    group_->stalled |= std::exchange(self_.stalls_link, false);
    if (const absl::Status error = std::exchange(self_.link_error, absl::OkStatus()); !error.ok())
      group_->Fail(error);
  }
  template <typename Done>
  absl::Status Await(const Done& done) {
    World& world = Site::current().world;
    const absl::Duration deadline = world.now() + kCollectiveTimeout;
    while (group_->failure.ok() && !done()) {
      if (!world.Block(group_.get(), deadline) && world.now() >= deadline)
        group_->Fail(absl::DeadlineExceededError("the other stage stayed away for too long"));
    }
    return group_->failure;
  }

  const std::shared_ptr<RankGroup> group_;
  const bool is_sender_;
  WorkerProcess& self_;
};

// The epoch is the end of the group's name, but for the part that names a stage or a link.
void CheckEpoch(Site& site, const std::string& group_name, int pid) {
  std::vector<std::string> parts = absl::StrSplit(group_name, '-');
  if (parts.back().front() == 's' || parts.back().front() == 'l') parts.pop_back();
  const std::string epoch = absl::StrCat(site.workers[pid].worker->group_epoch());
  if (parts.back() == epoch) return;
  site.world.Violate(
      absl::StrCat(site.world.name(pid), ", which is in epoch ", epoch, ", joins ", group_name));
}

// Returns once all ranks of the group are there.
absl::StatusOr<std::shared_ptr<RankGroup>> Meet(const GroupOptions& options, int pid) {
  Site& site = Site::current();
  World& world = site.world;
  CheckEpoch(site, options.group_name, pid);
  std::shared_ptr<RankGroup>& slot = site.groups[options.group_name];
  if (slot == nullptr) slot = std::make_shared<RankGroup>();
  const std::shared_ptr<RankGroup> group = slot;
  group->world_size = options.world_size;
  if (!group->processes.emplace(options.rank, pid).second)
    world.Violate(absl::StrCat("rank ", options.rank, " has joined ", options.group_name, " twice"));
  world.OnEnd(pid, [&world, group] {
    world.After(world.random().Between(absl::Milliseconds(1), absl::Seconds(1)),
                [group] { group->Fail(absl::UnavailableError("a rank of the group is dead")); });
  });
  world.Wake(group.get());
  const absl::Duration deadline = world.now() + kConnectTimeout;
  while (static_cast<int>(group->processes.size()) < options.world_size) {
    if (options.cancelled()) return absl::AbortedError("the group was given up while it formed");
    RETURN_IF_ERROR(group->failure);
    if (world.now() >= deadline) return absl::DeadlineExceededError("not every rank has joined");
    world.Block(group.get(), world.now() + kCancelInterval);
  }
  return group;
}

// The ranks of a group have loaded the same stage; the receiver of a link has loaded the stage behind the
// sender's.
void CheckStages(const RankGroup& group, bool is_link) {
  Site& site = Site::current();
  const int first = site.workers[group.processes.at(0)].stage;
  for (const auto& [rank, pid] : group.processes) {
    const int expected = first + (is_link ? rank : 0);
    if (site.workers[pid].stage == expected) continue;
    site.world.Violate(absl::StrCat(site.world.name(pid), " has loaded stage ", site.workers[pid].stage,
                                    ", and serves as stage ", expected));
  }
}

}  // namespace

void RankGroup::Fail(const absl::Status& reason) {
  if (failure.ok()) failure = reason;
  Site::current().world.Wake(this);
}

}  // namespace simulation

absl::StatusOr<std::unique_ptr<Communicator>> JoinHostGroup(const GroupOptions& options, TcpListener) {
  const int pid = simulation::World::current()->current_process();
  ASSIGN_OR_RETURN(std::shared_ptr<simulation::RankGroup> group, simulation::Meet(options, pid));
  simulation::CheckStages(*group, /*is_link=*/false);
  return std::make_unique<simulation::SimulatedCommunicator>(std::move(group), options.rank);
}

absl::StatusOr<std::unique_ptr<StageLink>> JoinHostLink(const GroupOptions& options, TcpListener) {
  simulation::World& world = *simulation::World::current();
  const int pid = world.current_process();
  ASSIGN_OR_RETURN(std::shared_ptr<simulation::RankGroup> group, simulation::Meet(options, pid));
  if (options.rank == StageLink::kReceiver) {
    simulation::CheckStages(*group, /*is_link=*/true);
    group->most_messages = static_cast<size_t>(world.random().Between(0, 2));
  }
  return std::make_unique<simulation::SimulatedLink>(std::move(group), options.rank, pid);
}

}  // namespace somnus
