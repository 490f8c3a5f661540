#pragma once
// Turns one sequence's token ids into text: incremental detokenizing, stop strings, the end of the sequence.
//
// Stop strings act as if the text arrived one character at a time: the stop string that ends first wins
// (listed first among equals), wherever tokens end. Text that may still become a stop string is held back, so
// that no part of a stop string is ever returned. Ownership: the tokenizer must outlive the processor. Not
// thread safe; the processor runs neither on the engine's thread nor on an I/O thread.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/request/request.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tools/turn_event.h"

namespace somnus {

struct OutputOptions {
  std::vector<std::string> stop;  // none is empty
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  int32_t min_tokens = 0;  // stop strings that end within this many tokens do not count
};

// The addition of an engine output to a choice.
struct OutputDelta {
  std::string text;  // whole UTF-8 characters
  // Instead of text, of a chat answer that is taken apart (turn_reader.h): reasoning, content and tool calls.
  std::vector<TurnEvent> events;
  int32_t num_reasoning_tokens = 0;  // among token_ids
  bool touches_reasoning = false;    // token_ids are of the reasoning, or end a marker of the reasoning
  std::vector<float> pooled;         // as of RequestOutput
  std::vector<int32_t> token_ids;
  std::vector<Logprobs> logprobs;  // parallel to token_ids, when requested
  std::vector<Logprobs> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<std::string> stop_string;  // the stop string that ended the sequence
  bool cuts_call = false;  // stop_string stands within a tool call, whose arguments thus lack their end
  std::optional<int32_t> stop_token_id;
  absl::Status error;
  int32_t num_cached_tokens = 0;
  int64_t weights_version = 0;     // as of RequestOutput
  std::string weights_name;        // as of OutputQueue::Queued
  bool engine_still_runs = false;  // a stop string has ended the choice: the caller aborts the request
};

class OutputProcessor {
 public:
  // `at_start`: no text of the prompt goes before the output, so the space before a first word is left out.
  OutputProcessor(const Tokenizer* tokenizer, OutputOptions options, bool at_start = false);

  // After a delta with a finish_reason, later outputs give empty deltas.
  OutputDelta Process(RequestOutput output);

  int32_t num_tokens() const { return num_tokens_; }
  bool finished() const { return finished_; }

 private:
  struct Match {
    size_t begin, end;
    size_t index;  // in options_.stop
  };
  // Appends `text` to pending_, and moves text that can no longer be part of a stop string from there to
  // `delta`. Returns true when a stop string ended the sequence.
  bool Advance(std::string text, bool count_stops, OutputDelta* delta);
  std::optional<Match> FirstMatch(size_t new_from) const;
  size_t HeldBackFrom() const;
  void Finish(OutputDelta* delta);

  OutputOptions options_;
  IncrementalDetokenizer detokenizer_;
  std::string pending_;  // held back
  int32_t num_tokens_ = 0;
  bool finished_ = false;
};

}  // namespace somnus
