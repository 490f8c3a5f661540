#pragma once
// Reads arguments that are written as nested elements, an element for each parameter, and writes a JSON
// object. <a>text</a> is a value, which becomes JSON by the tool's schema. An element with elements in it is
// an object, or an array where the schema says so; the names of an array's elements are dropped. A marker
// stands before each tag: text without the marker belongs to a value. Not thread safe.

#include <string>
#include <vector>

#include "text/tools/call_reader.h"
#include "text/tools/tool_format.h"
#include "text/tools/tool_schemas.h"

namespace somnus {

class ElementArguments : public ArgumentReader {
 public:
  // `format` and `schemas` must outlive the reader.
  ElementArguments(const ToolFormat& format, const ToolSchemas& schemas, std::string tool,
                   const TurnLimits& limits);

  ReadState Read(char c, std::string* json) override;
  bool Finish(bool is_cut, std::string* json) override;
  bool started() const override { return true; }
  std::string unread() const override { return unread_; }

 private:
  // One open element.
  struct Element {
    std::string name;
    ValueTypes types = 0;
    char close = 0;        // the bracket that ends its elements; 0: a value
    int num_elements = 0;  // so far
  };
  ReadState ReadText(char c, std::string* json);
  ReadState ReadTag(char c, std::string* json);
  ReadState EndTag(std::string* json);
  ReadState BeginElement(const std::string& name, std::string* json);
  ReadState Literal(const std::string& text, std::string* json);
  void EndElement(std::string* json);
  void EndAll(std::string* json);
  ReadState Stop(absl::string_view unread, std::string* json);
  std::vector<std::string> Path() const;

  const ToolFormat& format_;
  const ToolSchemas& schemas_;
  const std::string tool_;
  const TurnLimits limits_;
  std::vector<Element> open_;
  int num_parameters_ = 0;
  bool in_tag_ = false;
  std::string mark_;    // the part of the marker before a tag that has been read
  std::string tag_;     // of a tag
  std::string text_;    // of the innermost value, unless its text is written at once
  bool begun_ = false;  // the innermost value is a string, and its quote is written
  std::string unread_;
};

}  // namespace somnus
