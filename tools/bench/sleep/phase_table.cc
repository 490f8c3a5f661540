#include "tools/bench/sleep/phase_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace somnus {
namespace {

struct FloorName {
  const char* name;
  double SleepFloors::*speed;
};
constexpr FloorName kFloorNames[] = {{"fault", &SleepFloors::fault},
                                     {"copy", &SleepFloors::copy},
                                     {"release", &SleepFloors::release},
                                     {"disk_write", &SleepFloors::disk_write},
                                     {"disk_read", &SleepFloors::disk_read}};

// Of each round: a machine that others use is faster in one round than in another.
double Ratio(const Phase& phase) {
  std::vector<double> ratios;
  for (size_t i = 0; i < phase.floor_seconds.size(); ++i)
    ratios.push_back(phase.seconds[i] / phase.floor_seconds[i]);
  return Median(std::move(ratios));
}

std::string Line(const Phase& phase) {
  const auto [least, most] = std::minmax_element(phase.seconds.begin(), phase.seconds.end());
  std::string line = absl::StrFormat("  %-24s %8.1f MB %9.2f ms (%.2f..%.2f)", phase.name, phase.bytes / 1e6,
                                     1e3 * Median(phase.seconds), 1e3 * *least, 1e3 * *most);
  if (phase.floor_seconds.empty()) return line;
  return absl::StrFormat("%s, %.2f of its floor of %.2f ms", line, Ratio(phase),
                         1e3 * Median(phase.floor_seconds));
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void PhaseTable::Add(const std::string& section, const std::string& name, int64_t bytes, double seconds,
                     double floor_seconds) {
  auto phase = std::find_if(phases_.begin(), phases_.end(), [&](const Phase& known) {
    return known.section == section && known.name == name;
  });
  if (phase == phases_.end()) phase = phases_.insert(phases_.end(), {section, name, bytes, {}, {}});
  phase->seconds.push_back(seconds);
  if (floor_seconds > 0) phase->floor_seconds.push_back(floor_seconds);
}

std::string PhaseTable::ToText() const {
  std::string text = "floors (GB/s):";
  for (const FloorName& floor : kFloorNames) {
    std::vector<double> speeds;
    for (const SleepFloors& round : floors_) speeds.push_back(round.*floor.speed);
    if (Median(speeds) > 0) absl::StrAppendFormat(&text, " %s %.2f", floor.name, Median(speeds) / 1e9);
  }
  text += "\n";
  std::string section;
  for (const Phase& phase : phases_) {
    if (phase.section != section) absl::StrAppend(&text, section = phase.section, "\n");
    absl::StrAppend(&text, Line(phase), "\n");
  }
  return text;
}

nlohmann::json PhaseTable::ToJson() const {
  nlohmann::json json = {{"floors", nlohmann::json::object()}, {"phases", nlohmann::json::array()}};
  for (const FloorName& floor : kFloorNames) {
    for (const SleepFloors& round : floors_)
      json["floors"][absl::StrCat(floor.name, "_bytes_per_s")].push_back(round.*floor.speed);
  }
  for (const Phase& phase : phases_) {
    nlohmann::json row = {{"section", phase.section},
                          {"name", phase.name},
                          {"bytes", phase.bytes},
                          {"seconds", phase.seconds},
                          {"median_seconds", Median(phase.seconds)}};
    if (!phase.floor_seconds.empty()) {
      row["floor_seconds"] = phase.floor_seconds;
      row["ratio_to_floor"] = Ratio(phase);
    }
    json["phases"].push_back(std::move(row));
  }
  return json;
}

}  // namespace somnus
