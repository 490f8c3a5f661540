#include "coordinator/operators/report_json.h"

#include <nlohmann/json.hpp>

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

Json RankTagsJson(const RankReport& rank) {
  Json tags = Json::object();
  for (const auto& [tag, bytes] : rank.tags) {
    tags[tag] = {{"freed_bytes", bytes.freed_bytes},         {"backed_up_bytes", bytes.backed_up_bytes},
                 {"discarded_bytes", bytes.discarded_bytes}, {"mapped_bytes", bytes.mapped_bytes},
                 {"resident_bytes", bytes.resident_bytes},   {"host_bytes", bytes.host_bytes},
                 {"file_bytes", bytes.file_bytes},           {"sleeping_bytes", bytes.sleeping_bytes}};
  }
  return tags;
}

}  // namespace

Json ToJson(const TagBytes& bytes) {
  Json object = Json::object();
  for (const auto& [tag, count] : bytes) object[tag] = count;
  return object;
}

Json TagStatesJson(const TransitionReport& report) {
  Json states = Json::object();
  for (const auto& [tag, outcome] : report.tags)
    states[tag] = {{"state", TagStateName(outcome.state)}, {"changed", outcome.changed}};
  return states;
}

Json RanksJson(const TransitionReport& report) {
  Json ranks = Json::array();
  for (const RankReport& rank : report.ranks) {
    const PhaseSeconds& s = rank.seconds;
    ranks.push_back({{"replica", rank.replica},
                     {"rank", rank.rank},
                     {"tags", RankTagsJson(rank)},
                     {"seconds",
                      {{"prepare", s.prepare},
                       {"commit", s.commit},
                       {"copy", s.copy},
                       {"map", s.map},
                       {"release", s.release},
                       {"read", s.read}}}});
  }
  return ranks;
}

}  // namespace somnus
