//! One attempt at a plan: routes placed one after the other, or some of them taken off and placed again.

use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use smallvec::SmallVec;

use super::anneal::Found;
use super::board::{Board, Targets};
use super::router::{Request, Router, Way};
use super::routes::Path;
use super::sequence::Schedule;
use super::{Context, Objective, cbs, draw, straight};
use crate::error::Error;
use crate::simulate::{Batch, Outcome, Simulator, TaskId};
use crate::time::{NEVER, Time};

/// A complete plan of an attempt.
#[derive(Clone, Debug)]
pub struct Candidate<'a> {
    /// Its routes and reservations.
    pub board: Board<'a>,
    /// The order on every node.
    pub order: Vec<Vec<TaskId>>,
    /// Its times.
    pub outcome: Outcome,
    /// What attempts are compared by: lower is better.
    pub cost: (Time, Time),
}

/// A candidate, or why there is none: the lock-up of the dispatch rule, or nothing where routes found no way.
pub type Tried<'a> = Result<Candidate<'a>, Option<Error>>;

/// Places every route in `order`, each by the best way among those before it, or, where travel alone counts, by
/// the best way as if it were alone.
pub fn construct<'a>(context: &Context<'a>, router: &mut Router<'_>, order: &[usize], targets: &Targets) -> Tried<'a> {
    let occupied = context.objective == Objective::Simulated;
    let mut board = Board::new(context.instance, context.tasks, targets, occupied);
    for route in order {
        if !insert(context, router, &mut board, *route, None, NEVER) {
            return Err(None);
        }
    }
    finish(context, board, &mut router.work)
}

/// Takes `routes` off and places them again in that order; none where no way is left within `limit`.
pub fn replace<'a>(
    context: &Context<'a>,
    router: &mut Router<'_>,
    from: &Candidate<'a>,
    routes: &[usize],
    limit: Time,
) -> Tried<'a> {
    let mut board = from.board.clone();
    for route in routes {
        board.remove(*route);
    }
    for route in routes {
        if !insert(context, router, &mut board, *route, None, limit) {
            return Err(None);
        }
    }
    finish(context, board, &mut router.work)
}

/// Random routes, with the times that the dispatch rule gives them: a plan at once, whatever the size.
pub fn draw_routes<'a>(context: &Context<'a>, router: &mut Router<'_>, rng: &mut Pcg64) -> Tried<'a> {
    let instance = context.instance;
    let targets = context.targets(rng);
    let mut board = Board::new(instance, context.tasks, &targets, false);
    if !draw::routes(&mut board, instance, rng) {
        return Err(None);
    }
    if context.objective == Objective::Travel {
        return travelled(context, router, &paths_of(&board));
    }
    finish(context, board, &mut router.work)
}

/// Given routes by how long they take when nobody is in the way.
pub fn travelled<'a>(context: &Context<'a>, router: &mut Router<'_>, paths: &[Path]) -> Tried<'a> {
    let mut board = Board::new(context.instance, context.tasks, &targets_of(context, paths), false);
    for (route, path) in paths.iter().enumerate() {
        if !insert(context, router, &mut board, route, Some(path), NEVER) {
            return Err(None);
        }
    }
    finish(context, board, &mut router.work)
}

/// Quotas and lengths that complete routes have.
fn targets_of(context: &Context<'_>, paths: &[Path]) -> Targets {
    let instance = context.instance;
    let mut visits = vec![0; instance.stage_count()];
    for node in paths.iter().flatten() {
        visits[instance.stage_of[*node as usize]] += 1;
    }
    let lengths = paths.iter().map(SmallVec::len).collect();
    Targets { visits: instance.rules.cc3.then_some(visits), lengths, sets: None }
}

/// Random routes alone; none where the drawing ran into a dead end.
pub fn draw_paths(context: &Context<'_>, rng: &mut Pcg64) -> Option<Vec<Path>> {
    let targets = context.targets(rng);
    let mut board = Board::new(context.instance, context.tasks, &targets, false);
    draw::routes(&mut board, context.instance, rng).then(|| paths_of(&board))
}

/// Nodes of each route of a complete board.
pub fn paths_of(board: &Board<'_>) -> Vec<Path> {
    let nodes = |route: usize| board.ways(route).first().map_or(&[][..], |way| &way.nodes);
    (0..board.tasks().len()).map(|route| Path::from_slice(nodes(route))).collect()
}

/// What an island has found, with the times that its ranks give.
pub fn ranked<'a>(context: &Context<'a>, found: &Found, work: &mut u64) -> Tried<'a> {
    let board = board_of(context, &found.paths);
    let mut simulator = Simulator::new(context.instance);
    simulator.load(&board.batches());
    *work += simulator.task_count() as u64;
    simulator.run_ranked(&found.ranks).map_err(|_| None)?;
    timed(context, board, simulator.dispatched_order(), work)
}

/// A plan as one search hands it on to the next.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// Routes and the ranks of their tasks.
    Ranked(Found),
    /// Routes and the order of tasks on every node.
    Scheduled(Schedule),
}

impl Known {
    /// Iteration and sum of homecomings.
    pub fn key(&self) -> (Time, Time) {
        match self {
            Self::Ranked(found) => found.key,
            Self::Scheduled(schedule) => schedule.key,
        }
    }

    /// The plan with its times.
    pub fn timed<'a>(&self, context: &Context<'a>, work: &mut u64) -> Tried<'a> {
        match self {
            Self::Ranked(found) => ranked(context, found, work),
            Self::Scheduled(schedule) => scheduled(context, schedule.clone(), work),
        }
    }
}

/// A schedule as it stands.
pub(super) fn scheduled<'a>(context: &Context<'a>, schedule: Schedule, work: &mut u64) -> Tried<'a> {
    timed(context, board_of(context, &schedule.paths), schedule.order, work)
}

/// What conflict-based search has found: the routes and order of its execution.
pub fn executed<'a>(context: &Context<'a>, found: cbs::Solution, work: &mut u64) -> Tried<'a> {
    let paths = paths_of_batches(&found.batches, context.tasks.len());
    timed(context, board_of(context, &paths), found.order, work)
}

/// Nodes of each of so many routes.
pub fn paths_of_batches(batches: &[Batch], routes: usize) -> Vec<Path> {
    let mut paths = vec![Path::new(); routes];
    for batch in batches {
        paths[batch.route] = Path::from_slice(&batch.nodes);
    }
    paths
}

/// The routes of a candidate in another order.
pub fn reordered<'a>(
    context: &Context<'a>,
    from: &Candidate<'a>,
    order: Vec<Vec<TaskId>>,
    work: &mut u64,
) -> Tried<'a> {
    timed(context, from.board.clone(), order, work)
}

/// A complete board in a given order.
fn timed<'a>(context: &Context<'a>, mut board: Board<'a>, order: Vec<Vec<TaskId>>, work: &mut u64) -> Tried<'a> {
    let mut simulator = Simulator::new(context.instance);
    simulator.load(&board.batches());
    *work += simulator.task_count() as u64;
    let outcome = simulator.run_order(&order).map_err(|_| None)?;
    board.retime(&simulator, &order);
    Ok(Candidate { board, order, cost: (outcome.iteration, outcome.finish_sum), outcome })
}

/// A board with these routes, not yet timed.
fn board_of<'a>(context: &Context<'a>, paths: &[Path]) -> Board<'a> {
    let mut board = Board::new(context.instance, context.tasks, &targets_of(context, paths), false);
    for (route, path) in paths.iter().enumerate() {
        let way = Way { nodes: path.to_vec(), starts: Vec::new(), home: 0, value: 0 };
        board.place(route, vec![way; context.tasks[route].waves]);
    }
    board
}

/// A candidate as islands see it; its ranks follow the times at which its microbatches go out and turn round.
pub fn found_of(candidate: &Candidate<'_>) -> Found {
    let board = &candidate.board;
    let mut times: Vec<(Time, u32)> = Vec::new();
    for way in (0..board.tasks().len()).flat_map(|route| board.ways(route)) {
        let place = times.len() as u32;
        times.push((way.starts[0], place));
        times.push((way.starts[way.nodes.len()], place + 1));
    }
    times.sort_unstable();
    let mut ranks = vec![0; times.len()];
    for (rank, (_, place)) in (0..).zip(times) {
        ranks[place as usize] = rank;
    }
    Found { paths: paths_of(board), ranks, key: candidate.cost, settled: None }
}

/// The straight pipelines of `full`, as a start for `full-routed`; for routes of one microbatch each.
pub fn straight_routes<'a>(context: &Context<'a>, router: &mut Router<'_>, rng: &mut Pcg64) -> Tried<'a> {
    let mut board = Board::new(context.instance, context.tasks, &context.targets(rng), false);
    for (route, batch) in straight::pipelines(context.instance, rng).into_iter().enumerate() {
        board.place(route, vec![Way { nodes: batch.nodes, starts: Vec::new(), home: 0, value: 0 }]);
    }
    finish(context, board, &mut router.work)
}

/// Finds the ways of one route's waves, each wave after the one before is home, and places them.
fn insert(
    context: &Context<'_>,
    router: &mut Router<'_>,
    board: &mut Board<'_>,
    route: usize,
    forced: Option<&[u32]>,
    limit: Time,
) -> bool {
    let task = context.tasks[route];
    let stop = || context.budget.is_over();
    if stop() {
        return false;
    }
    let mut request = Request {
        source: task.source,
        load: task.load,
        release: 0,
        visits: board.visits(route),
        forced: forced.or(context.instance.loads[task.load].forced.as_deref()),
        limit,
    };
    let Some(first) = router.find(board, &request, &stop) else { return false };
    let mut ways: Vec<Way> = vec![first];
    let nodes = ways[0].nodes.clone();
    request.forced = Some(&nodes);
    for _ in 1..task.waves {
        request.release = ways[ways.len() - 1].home;
        // A later wave starts when the one before is home, so the two never want a node at the same time.
        let Some(way) = router.find(board, &request, &stop) else { return false };
        ways.push(way);
    }
    board.place(route, ways);
    true
}

/// Gives a complete board its times: by the order in which it was made, or by the dispatch rule where that
/// is faster.
pub fn finish<'a>(context: &Context<'a>, mut board: Board<'a>, work: &mut u64) -> Tried<'a> {
    let batches = board.batches();
    let mut simulator = Simulator::new(context.instance);
    simulator.load(&batches);
    *work += simulator.task_count() as u64;
    if context.objective == Objective::Travel {
        let outcome = simulator.run_dispatch().map_err(|lockup| Some(simulator.error_of(&lockup)))?;
        let values = (0..context.tasks.len()).flat_map(|r| board.ways(r)).map(|way| way.value);
        let cost = values.fold((0, 0), |(most, sum): (Time, Time), value| (most.max(value), sum + value));
        let order = simulator.dispatched_order();
        return Ok(Candidate { board, order, outcome, cost });
    }
    let dispatched = simulator.run_dispatch();
    let mut order = board.order(&simulator);
    // Memory and order were kept while placing, so this cannot lock up but for tasks of no length.
    let planned = if board.is_occupied() { simulator.run_order(&order).ok() } else { None };
    let key = |outcome: &Outcome| (outcome.iteration, outcome.finish_sum);
    let outcome = match (planned, dispatched) {
        (Some(planned), Ok(dispatched)) if key(&planned) <= key(&dispatched) => planned,
        (Some(planned), Err(_)) => planned,
        (_, Ok(_)) => {
            order = simulator.dispatched_order();
            simulator.run_order(&order).map_err(|_| None)?
        }
        (None, Err(lockup)) => return Err(Some(simulator.error_of(&lockup))),
    };
    board.retime(&simulator, &order);
    Ok(Candidate { board, order, cost: key(&outcome), outcome })
}

/// Routes in a random order that begins, on the whole, with those that have least slack.
pub fn priority(context: &Context<'_>, targets: &Targets, rng: &mut Pcg64, shuffle: f64) -> Vec<usize> {
    use rand::RngExt;
    let hardness = |route: usize| {
        let task = context.tasks[route];
        context.outlook.round_trip(context.instance, task.source, targets.lengths[route]) as f64 * task.waves as f64
    };
    let mut keyed: Vec<(f64, usize)> =
        (0..context.tasks.len()).map(|r| (hardness(r) * (1.0 - shuffle * rng.random::<f64>()), r)).collect();
    keyed.shuffle(rng);
    keyed.sort_by(|a, b| b.0.total_cmp(&a.0));
    keyed.into_iter().map(|(_, route)| route).collect()
}
