#pragma once
// Turns as written by models, format by format, with their parts: recorded_turns.jsonl, a line a turn.

#include <string>
#include <vector>

#include "text/tools/turn_parser.h"

namespace somnus {

struct RecordedTurn {
  std::string title;
  std::string tools;      // a name of a tool format; empty: none
  std::string reasoning;  // a name of a reasoning format; empty: none
  bool starts_in_reasoning = false;
  std::string text;
  // The ids of the calls are "id0", "id1", ... where the model writes none.
  ParsedTurn turn;
};
const std::vector<RecordedTurn>& RecordedTurns();

// The tools of all turns: get_weather with parameters of every type, get_time without any, run with code.
const std::vector<ToolSpec>& RecordedTools();

// Formats and options for the turn.
TurnFormat FormatOf(const RecordedTurn& recorded);
TurnOptions OptionsOf(const RecordedTurn& recorded);

}  // namespace somnus
