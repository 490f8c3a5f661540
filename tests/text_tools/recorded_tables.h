#pragma once
// The parts of RecordedTurns(), by how calls are written. Internal to recorded_turns.

#include <vector>

#include "tests/text_tools/recorded_turns.h"

namespace somnus {

// The calls of most turns; their ids are those of the first and of the second call of a turn.
inline constexpr char kParis[] = R"({"city": "Paris", "days": 3})";
inline const ParsedTurn::Call kParisCall = {"id0", "get_weather", kParis};
inline const ParsedTurn::Call kTimeCall = {"id1", "get_time", "{}"};

std::vector<RecordedTurn> JsonTurns();
std::vector<RecordedTurn> NamedTurns();  // the name before the arguments, outside of JSON
std::vector<RecordedTurn> TagTurns();
std::vector<RecordedTurn> PythonicTurns();
std::vector<RecordedTurn> RareTurns();       // formats of vLLM's list that few families write
std::vector<RecordedTurn> ReasoningTurns();  // channels, and reasoning without calls

}  // namespace somnus
