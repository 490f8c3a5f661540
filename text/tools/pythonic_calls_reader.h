#pragma once
// Reads calls in Python's syntax: [f(a="x", b=1), g()], or without brackets one call behind the other.
// Arguments have names, and values are literals; anything else is no call.

#include <string>

#include "text/tools/call_reader.h"
#include "text/tools/loose_value.h"

namespace somnus {

class PythonicCallsReader : public CallReader {
 public:
  // `needs_list`: calls without brackets are text. `output` must outlive the reader.
  PythonicCallsReader(bool needs_list, const TurnLimits& limits, CallOutput* output)
      : needs_list_(needs_list), limits_(limits), output_(output), value_("", limits.max_depth) {}

  ReadState Read(char c) override;
  void Finish(bool is_cut) override;

 private:
  enum class At { kStart, kName, kFirstKey, kKey, kKeyEnd, kValue, kAfterValue, kNextKey, kNext };
  ReadState ReadStart(char c);
  ReadState ReadName(char c);
  ReadState ReadKeyStart(char c);
  ReadState ReadKey(char c);
  ReadState ReadValue(char c);
  ReadState ReadAfterValue(char c);
  ReadState ReadNext(char c);
  ReadState EndCall();
  void CloseCall();
  ReadState Stop();

  const bool needs_list_;
  const TurnLimits limits_;
  CallOutput* const output_;
  At at_ = At::kStart;
  bool in_list_ = false;
  std::string name_, key_;
  bool begun_ = false;  // the call under way has been told to the output
  LooseValue value_;
  int64_t bytes_ = 0;
};

}  // namespace somnus
