#pragma once
// Reads what stands between the marker that begins a call and the arguments: the name, and perhaps an id. Not
// thread safe.

#include <string>

#include "text/tools/call_reader.h"
#include "text/tools/tool_format.h"

namespace somnus {

class HeaderReader {
 public:
  // `format` must outlive the reader.
  explicit HeaderReader(const ToolFormat& format) : header_(format.header), ids_(format.ids) {
    if (header_.prefix.empty()) at_ = At::kWord;
  }

  // kStop with ended(): the byte belongs to the arguments.
  ReadState Read(char c);
  bool ended() const { return at_ == At::kEnded; }
  // Whether the header's own end has been read, which only a call has.
  bool has_end_marker() const { return has_end_marker_; }
  // Not before ended().
  const std::string& name() const { return name_; }
  const std::string& id() const { return id_; }

 private:
  enum class At { kPrefix, kWord, kMark, kAttributes, kEnded };
  ReadState ReadPrefix(char c);
  ReadState ReadMark(char c);
  ReadState ReadAttributes(char c);
  void EndWord();
  ReadState End(bool has_marker);

  const CallHeader& header_;
  const CallIdStyle ids_;
  At at_ = At::kPrefix;
  std::string mark_;  // the part of a mark that has been read, or the attributes
  std::string word_;
  std::string name_, id_;
  bool is_id_ = false;     // the word is the id, not the name
  bool has_type_ = false;  // a word before the name has been read
  bool has_end_marker_ = false;
};

}  // namespace somnus
