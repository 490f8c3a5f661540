#pragma once
// The parts of the parser that read calls. A reader gets the text behind the marker that begins a call, byte
// by byte, so that what is found cannot depend on how the text was cut into pieces.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

// Bounds on what a model's text can make the parser hold.
struct TurnLimits {
  int64_t max_argument_bytes = 4 << 20;  // of one call, as JSON text
  int32_t max_calls = 256;               // of one turn; what follows is content
  int max_depth = 128;                   // of arguments' nesting
};

enum class ReadState {
  kMore,
  kDone,  // the byte was the last of the calls
  // The byte was not read: what was read since the last Begin or End of a call is no call, and is text.
  kStop,
};

// Where readers put calls. Calls come one after the other.
class CallOutput {
 public:
  virtual ~CallOutput() = default;
  // `id` is empty where the model wrote none. Returns false where the turn has too many calls, and has then
  // not begun a call.
  virtual bool Begin(std::string name, std::string id) = 0;
  // A part of the JSON text of the call's arguments.
  virtual void Arguments(absl::string_view json) = 0;
  // `is_whole`: the arguments are complete; a text that ends early may cut the arguments.
  virtual void End(bool is_whole = true) = 0;
};

class CallReader {
 public:
  virtual ~CallReader() = default;
  virtual ReadState Read(char c) = 0;
  // The text has ended. `is_cut`: by its length, so that an open call stays as it is; otherwise its arguments
  // become whole JSON where the format is converted, or brackets alone are missing.
  virtual void Finish(bool is_cut) = 0;
  // After kDone, or after kStop behind the End of a call: the last bytes that were read and are no part of
  // the call.
  virtual std::string unread() const { return ""; }
};

// Reads the arguments of one call, and appends their JSON text to `json`. Of kStop before started(): what was
// read is no call.
class ArgumentReader {
 public:
  virtual ~ArgumentReader() = default;
  virtual ReadState Read(char c, std::string* json) = 0;
  // Returns whether the arguments are complete.
  virtual bool Finish(bool is_cut, std::string* json) = 0;
  virtual bool started() const = 0;
  // As CallReader's.
  virtual std::string unread() const { return ""; }
};

}  // namespace somnus
