// Which adapters give way when there are more adapters than places.

#include "worker/runner/adapter_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace somnus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Move = AdapterPlaces::Move;

// A step of sequences that are all there are.
std::vector<Move> Place(AdapterPlaces& places, const std::vector<int32_t>& step) {
  const auto moves = places.Place(step, step);
  EXPECT_TRUE(moves.ok()) << moves.status();
  return moves.ok() ? *moves : std::vector<Move>();
}

TEST(AdapterPlaces, AStepMovesNothingThatIsThere) {
  AdapterPlaces places(4, 2);
  EXPECT_THAT(Place(places, {3, 1, 3}), ElementsAre(Move{3, 0}, Move{1, 1}));
  EXPECT_THAT(Place(places, {1, 3}), IsEmpty());
  EXPECT_THAT(places.places(), ElementsAre(1, -1, 0, -1));
}

TEST(AdapterPlaces, TheLeastRecentlyUsedGivesWay) {
  AdapterPlaces places(4, 3);
  Place(places, {1, 2, 3});
  Place(places, {1});
  Place(places, {3});
  EXPECT_THAT(Place(places, {4}), ElementsAre(Move{4, 1})) << "in the place of 2";
  EXPECT_THAT(Place(places, {2}), ElementsAre(Move{2, 0})) << "in the place of 1";
  EXPECT_THAT(Place(places, {4, 3}), IsEmpty());
}

// A sequence that waits for the next chunk of a prompt keeps the place of the adapter, and an adapter that no
// sequence has gives way.
TEST(AdapterPlaces, AdaptersOfOtherSequencesGiveWayLast) {
  AdapterPlaces places(4, 2);
  Place(places, {1});
  Place(places, {2});
  EXPECT_THAT(*places.Place({3}, {1, 3}), ElementsAre(Move{3, 1})) << "2 is newer, but nobody has it";
  EXPECT_THAT(*places.Place({4}, {1, 3, 4}), ElementsAre(Move{4, 0})) << "the older of two that are needed";
}

TEST(AdapterPlaces, AStepDoesNotTakeItsOwnPlaces) {
  AdapterPlaces places(3, 2);
  Place(places, {1, 2});
  const auto moves = places.Place({3, 2, 1}, {});
  EXPECT_EQ(moves.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Place(places, {3, 2}), ElementsAre(Move{3, 0}));
}

TEST(AdapterPlaces, AStepThatIsRefusedChangesNothing) {
  AdapterPlaces places(3, 2);
  Place(places, {1});
  EXPECT_FALSE(places.Place({2, 3, 1}, {}).ok());
  EXPECT_THAT(Place(places, {1, 2}), ElementsAre(Move{2, 1})) << "1 has its place, 2 has none yet";
}

TEST(AdapterPlaces, DroppedSlotsComeAgain) {
  AdapterPlaces places(2, 2);
  Place(places, {1, 2});
  places.Drop(2);
  places.Drop(2);
  EXPECT_THAT(places.places(), ElementsAre(0, -1));
  EXPECT_THAT(Place(places, {1, 2}), ElementsAre(Move{2, 1}));
  places.Clear();
  EXPECT_THAT(Place(places, {2}), ElementsAre(Move{2, 0}));
}

}  // namespace
}  // namespace somnus
