#include "coordinator/adapters/adapter_waits.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/request/expiry.h"
#include "coordinator/request/request_bytes.h"

namespace somnus {

absl::Status AdapterWaits::Add(Requests requests) {
  SetQueuedBytes(&requests);
  RETURN_IF_ERROR(room_.Check(requests, /*num_preempted=*/0));
  for (const EngineRequest& request : requests) room_.Add(request);
  groups_.push_back(std::move(requests));
  return absl::OkStatus();
}

bool AdapterWaits::Awaits(const std::string& name) const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [&](const Requests& group) { return group.front().adapter_name == name; });
}

void AdapterWaits::PutLast(const std::string& name) {
  std::list<Requests> others;
  for (auto group = groups_.begin(); group != groups_.end();) {
    const auto next = std::next(group);
    if (group->front().adapter_name != name) others.splice(others.end(), groups_, group);
    group = next;
  }
  groups_.splice(groups_.begin(), others);
}

AdapterWaits::Requests AdapterWaits::TakeFirst(const std::string& name) {
  const auto first = std::find_if(groups_.begin(), groups_.end(),
                                  [&](const Requests& group) { return group.front().adapter_name == name; });
  if (first == groups_.end()) return {};
  Requests taken = std::move(*first);
  groups_.erase(first);
  for (const EngineRequest& request : taken) room_.Remove(request, /*was_scheduled=*/false);
  return taken;
}

void AdapterWaits::AddFirst(Requests requests) {
  for (const EngineRequest& request : requests) room_.Add(request);
  groups_.push_front(std::move(requests));
}

template <typename Predicate>
AdapterWaits::Requests AdapterWaits::TakeIf(const Predicate& taken) {
  Requests requests;
  for (auto group = groups_.begin(); group != groups_.end();) {
    for (auto request = group->begin(); request != group->end();) {
      if (!taken(*request)) {
        ++request;
        continue;
      }
      room_.Remove(*request, /*was_scheduled=*/false);
      requests.push_back(std::move(*request));
      request = group->erase(request);
    }
    group = group->empty() ? groups_.erase(group) : std::next(group);
  }
  return requests;
}

std::optional<EngineRequest> AdapterWaits::Remove(const std::string& id) {
  if (!room_.is_live(id)) return std::nullopt;
  Requests removed = TakeIf([&](const EngineRequest& request) { return request.id == id; });
  return std::move(removed.front());
}

MonotonicTime AdapterWaits::NextExpiry() const {
  MonotonicTime next = absl::InfiniteDuration();
  for (const Requests& group : groups_) {
    for (const EngineRequest& request : group) next = std::min(next, ExpiresAt(request, false));
  }
  return next;
}

AdapterWaits::Requests AdapterWaits::TakeExpired(MonotonicTime now) {
  return TakeIf([now](const EngineRequest& request) { return ExpiresAt(request, false) <= now; });
}

AdapterWaits::Requests AdapterWaits::TakeAll() {
  return TakeIf([](const EngineRequest&) { return true; });
}

}  // namespace somnus
