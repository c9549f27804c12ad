// Random operations on engines that write to each other both ways; see docs/pyfabric.md, "Fuzz".
//
//   pyfabric_fuzz PROVIDER OPERATIONS SEED [--threads] [--page-bytes N] [--kills-a-second X] [--deadline S]
//
// Three nodes, each a process (or, with --threads, a thread of one process) with an engine of its own. A reader gives out
// pages and a slot; the writer arms a program that fills them; the reader compares every byte and the count. Pages that
// came back (done, drained, failed after a fence, or fenced) hold a poison that nothing may change. Prints JSON.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "clock.hpp"
#include "fabric.hpp"
#include "node.hpp"

namespace fuzz {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kStuckNs = 120 * kSecond;

int usage() {
  fprintf(stderr, "usage: pyfabric_fuzz tcp|shm|mapped OPERATIONS SEED [--threads] [--page-bytes N] [--kills-a-second X] [--deadline S]\n");
  return 2;
}

bool read_settings(int argc, char** argv, Settings& s) {
  if (argc < 4) return false;
  s.provider = argv[1];
  s.operations = strtoull(argv[2], nullptr, 10);
  s.seed = strtoull(argv[3], nullptr, 10);
  for (int i = 4; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--threads") s.processes = false;
    else if (name == "--page-bytes" && i + 1 < argc) s.page_bytes = strtoull(argv[++i], nullptr, 10);
    else if (name == "--kills-a-second" && i + 1 < argc) s.kills_a_second = strtod(argv[++i], nullptr);
    else if (name == "--deadline" && i + 1 < argc) s.deadline_s = strtod(argv[++i], nullptr);
    else return false;
  }
  if (!s.processes && std::string(s.provider) == "shm") return false;  // engines of one process cannot write both ways there
  return s.operations > 0 && s.page_bytes >= 8;
}

void report(const Board& board, const Settings& s, double seconds) {
  printf("{\"provider\": \"%s\", \"nodes\": \"%d %s\", \"seed\": %" PRIu64 ", \"page_bytes\": %" PRIu64 ", \"seconds\": %.1f, \"operations\": %" PRIu64,
         s.provider, kNodes, s.processes ? "processes" : "threads", s.seed, s.page_bytes, seconds, board.operations.load());
  for (int i = 0; i < int(Kind::kCount); ++i) printf(", \"%s\": %" PRIu64, kKindNames[i], board.done[i].load());
  printf(", \"outcomes\": {");
  for (int i = 0; i < int(Fact::kCount); ++i) printf("%s\"%s\": %" PRIu64, i ? ", " : "", kFactNames[i], board.facts[i].load());
  printf("}}\n");
  fflush(stdout);
}

// Stops the run at its last operation; a node that does not turn, or operations that do not come, are a fault.
class Clockwork {
 public:
  Clockwork(Board& board, const Settings& settings) : board_(board), settings_(settings) {}
  bool turn() {  // true when the nodes were told to stop
    const uint64_t operations = board_.operations.load();
    if (operations >= settings_.operations) board_.stop.store(true);
    const int64_t now = pyfabric::now_ns();
    for (int i = 0; i < kNodes; ++i) {
      const uint64_t beat = board_.seats[i].heartbeat.load();
      if (beat != beats_[i]) beats_[i] = beat, since_[i] = now;
      if (now - since_[i] > kStuckNs) fault("node %d hangs", i);
    }
    if (operations != last_ || board_.stop.load()) moved_ = board_.stop.load() && moved_ ? moved_ : now, last_ = operations;
    if (now - moved_ > kStuckNs) fault("%s", board_.stop.load() ? "some program or ticket never ended" : "operations have stopped");
    if (now > spoken_ + 30 * kSecond) fprintf(stderr, "%" PRIu64 " operations\n", operations), spoken_ = now;
    return board_.stop.load();
  }

 private:
  Board& board_;
  const Settings& settings_;
  uint64_t beats_[kNodes] = {}, last_ = 0;
  int64_t since_[kNodes] = {pyfabric::now_ns(), pyfabric::now_ns(), pyfabric::now_ns()};
  int64_t moved_ = pyfabric::now_ns(), spoken_ = moved_;
};

pid_t spawn(Board& board, int self, const Settings& settings) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Node(board, self, settings).run();
  exit(0);  // not _exit(): the leak sanitizer looks at exit
}

void pause_briefly() {
  const timespec nap{0, 5'000'000};
  nanosleep(&nap, nullptr);
}

// One child dies by SIGKILL, in the middle of whatever it does, and a new life takes its seat.
void kill_one(Board& board, const Settings& settings, std::vector<pid_t>& children, Random& random) {
  const int victim = int(below(random, kNodes));
  int status = 0;
  if (waitpid(children[size_t(victim)], &status, WNOHANG) != 0) fault("node %d ended by itself: status %d", victim, status);
  kill(children[size_t(victim)], SIGKILL);
  waitpid(children[size_t(victim)], &status, 0);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) fault("node %d ended by itself: status %d", victim, status);
  board.seats[victim].life.fetch_add(1);
  children[size_t(victim)] = spawn(board, victim, settings);
  board.count(Kind::kKill);
}

void run_processes(Board& board, const Settings& settings) {
  std::vector<pid_t> children;
  for (int i = 0; i < kNodes; ++i) children.push_back(spawn(board, i, settings));
  Clockwork clockwork(board, settings);
  Random random(settings.seed);
  const auto gap = [&] { return int64_t(double(kSecond) / settings.kills_a_second * (0.2 + 1.6 * double(below(random, 1000)) / 1000)); };
  int64_t next = settings.kills_a_second > 0 ? pyfabric::now_ns() + gap() : INT64_MAX;
  while (!clockwork.turn()) {
    pause_briefly();
    for (int i = 0; i < kNodes; ++i) {
      int status = 0;
      if (waitpid(children[size_t(i)], &status, WNOHANG) != 0) fault("node %d ended by itself: status %d", i, status);
    }
    if (pyfabric::now_ns() < next) continue;
    kill_one(board, settings, children, random);
    next = pyfabric::now_ns() + gap();
  }
  for (int left = kNodes; left > 0;) {
    clockwork.turn();
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended == 0) pause_briefly();
    else if (ended < 0 || status != 0) fault("a node ended with status %d", status);
    else --left;
  }
}

void run_threads(Board& board, const Settings& settings) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kNodes; ++i) threads.emplace_back([&board, &settings, i] { Node(board, i, settings).run(); });
  Clockwork clockwork(board, settings);
  while (!clockwork.turn()) pause_briefly();
  for (std::thread& thread : threads) thread.join();
}

int run(int argc, char** argv) {
  Settings settings;
  if (!read_settings(argc, argv, settings)) return usage();
  void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fault("no shared memory");
  Board& board = *new (memory) Board;
  for (Seat& seat : board.seats) seat.life.store(1);
  const int64_t start = pyfabric::now_ns();
  (settings.processes ? run_processes : run_threads)(board, settings);
  report(board, settings, double(pyfabric::now_ns() - start) / 1e9);
  return 0;
}

}  // namespace
}  // namespace fuzz

int main(int argc, char** argv) { return fuzz::run(argc, argv); }
