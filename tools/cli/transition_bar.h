#pragma once
// A bar on the terminal that shows the progress of a sleep or a wake-up, while a separate call makes the
// transition.

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

// The text of the bar for each message of one stream. Transitions that had ended before the first message are
// left out. Not thread safe.
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

// Draws on stderr from construction to destruction, which leaves an empty line for further output. Where
// stderr is no terminal, or the server cannot be watched, nothing is drawn.
class TransitionBar {
 public:
  TransitionBar(const Server& server, const std::string& model);
  ~TransitionBar();
  TransitionBar(const TransitionBar&) = delete;
  TransitionBar& operator=(const TransitionBar&) = delete;

 private:
  TransitionLines lines_;  // for the stream's thread
  bool drawn_ = false;     // for the stream's thread, until that thread has ended
  std::unique_ptr<TransitionStream> stream_;
};

}  // namespace somnus::cli
