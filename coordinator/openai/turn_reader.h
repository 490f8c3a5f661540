#pragma once
// Takes one chat answer apart while it comes (text/tools/turn_parser.h), and counts the tokens of its
// reasoning. Not thread safe.

#include <memory>

#include "coordinator/openai/answer_format.h"
#include "coordinator/openai/output_processor.h"
#include "text/tools/turn_parser.h"

namespace somnus {

class TurnReader {
 public:
  explicit TurnReader(std::shared_ptr<const AnswerFormat> format);

  // Moves the text of `delta`, which must have at most one token, into its events.
  void Read(OutputDelta* delta);

 private:
  bool IsShown(const TurnEvent& event) const;
  // Whether the model itself, or a stop string that marks the end of calls, has ended the text.
  bool IsWhole(const OutputDelta& delta) const;

  const std::shared_ptr<const AnswerFormat> format_;
  TurnParser parser_;
};

}  // namespace somnus
