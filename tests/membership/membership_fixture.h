#pragma once
// Workers that register and send heartbeats at times that the test names, and a watcher.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/membership/membership.h"

namespace somnus {

inline MembershipOptions Options(int32_t world_size) {
  MembershipOptions options{.world_size = world_size, .version = "1", .hang_timeout = absl::Seconds(10)};
  return options;
}

inline v1::RegisterRequest Worker(const std::string& id, const std::string& host, int preferred_rank = -1) {
  v1::RegisterRequest request;
  request.set_worker_id(id);
  request.set_host(host);
  request.set_pid(7);
  request.set_address("unix:/" + id);
  request.set_version("1");
  if (preferred_rank >= 0) request.set_preferred_rank(preferred_rank);
  return request;
}

inline const MonotonicTime kNow = absl::Seconds(1000);

inline v1::HeartbeatRequest Beat(const std::string& id) {
  v1::HeartbeatRequest heartbeat;
  heartbeat.set_worker_id(id);
  return heartbeat;
}

// The findings of a watcher that looks every second from `from` to `to`.
struct Seen {
  std::vector<std::string> dropped;
  std::vector<std::string> silent;
};
inline Seen Watch(Membership* membership, MonotonicTime from, MonotonicTime to) {
  Seen seen;
  for (MonotonicTime now = from; now <= to; now += absl::Seconds(1)) {
    for (const std::string& name : membership->DropSilent(now)) seen.dropped.push_back(name);
    for (const SilentMember& member : membership->CheckHeartbeats(now)) {
      EXPECT_TRUE(absl::IsUnavailable(member.status));
      seen.silent.push_back(absl::StrCat(member.worker.worker_id(), ": ", member.status.message()));
    }
  }
  return seen;
}

inline std::string Order(const absl::StatusOr<std::vector<v1::RegisterRequest>>& group) {
  if (!group.ok()) return group.status().ToString();
  std::string order;
  for (const auto& member : *group) order += member.worker_id();
  return order;
}

}  // namespace somnus
