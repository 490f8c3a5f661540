#pragma once
// A bar on the terminal that shows how far a sleep or a wake-up is, while another call makes it.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "proto/control.pb.h"
#include "tools/cli/control_client.h"
#include "tools/cli/server.h"

namespace somnus::cli {

// What the bar says of each message of one stream. Transitions that had ended before the first message are no
// part of it. Not thread safe.
class TransitionLines {
 public:
  // No escape sequences, and at most `columns` wide: "waking up [####    ]  52%  1.20 GiB of 2.30 GiB  map".
  // Empty: there is nothing to show.
  std::string Line(const v1::WatchTransitionResponse& response, int columns);

 private:
  using Rank = std::pair<int32_t, int32_t>;  // replica, rank

  bool IsOld(const v1::WatchTransitionResponse::RankProgress& rank) const;

  std::optional<std::map<Rank, uint64_t>> old_;  // ids; once there was a message
};

// Draws on stderr from its making to its destruction, which leaves an empty line for what comes next. Where
// stderr is no terminal, or the server cannot be watched, nothing is drawn.
class TransitionBar {
 public:
  TransitionBar(const Server& server, const std::string& model);
  ~TransitionBar();
  TransitionBar(const TransitionBar&) = delete;
  TransitionBar& operator=(const TransitionBar&) = delete;

 private:
  TransitionLines lines_;  // for the stream's thread
  bool drawn_ = false;     // likewise, until that has ended
  std::unique_ptr<TransitionStream> stream_;
};

}  // namespace somnus::cli
