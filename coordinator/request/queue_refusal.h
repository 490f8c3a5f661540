#pragma once
// The error of a request for which the queue has no room, with the bound that was met, for metrics.

#include <array>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace somnus {

enum class QueueBound { kRequests, kTokens, kBytes, kUserShare };
// The first two as in vLLM (pull request 55812).
inline constexpr std::array<const char*, 4> kQueueBounds = {"max_num_queued_reqs", "max_num_queued_tokens",
                                                            "max_waiting_bytes", "max_user_queue_share"};

inline constexpr char kQueueBoundPayload[] = "somnus/queue_bound";

// ResourceExhausted.
inline absl::Status QueueFull(QueueBound bound, absl::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kQueueBoundPayload, absl::Cord(kQueueBounds[static_cast<size_t>(bound)]));
  return status;
}

// The name of the bound, one of kQueueBounds; empty: another error.
inline std::string QueueBoundOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kQueueBoundPayload);
  return payload.has_value() ? std::string(*payload) : "";
}

}  // namespace somnus
