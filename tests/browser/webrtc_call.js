// A browser's call over WebRTC, as OpenAI's documentation has it: what happened until `seconds` are over.
// A connection that is lost is made again for the same session.
async (seconds) => {
  const seen = [];
  const began = performance.now();
  const note = (what, more = {}) => {
    seen.push({ at: (performance.now() - began) / 1000, what, ...more });
    console.log(what);
  };
  const plain = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  const microphone = await navigator.mediaDevices.getUserMedia({ audio: plain });
  let peer = await connect();
  await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  for (const report of (await peer.getStats()).values()) {
    if (report.type === "inbound-rtp") note("received", { lost: report.packetsLost });
  }
  peer.close();
  return seen;

  async function connect(sessionId) {
    const peer = new RTCPeerConnection();
    const events = peer.createDataChannel("oai-events");
    // What a session does not take, such as a camera, is rejected in the answer; the rest goes on.
    const camera = document.createElement("canvas");
    camera.getContext("2d").fillRect(0, 0, 9, 9);
    peer.addTrack(camera.captureStream(30).getTracks()[0]);
    peer.addTrack(microphone.getTracks()[0]);
    peer.ontrack = ({ streams }) => {
      // Chromium decodes a remote track only when an element plays it.
      const loudspeaker = new Audio();
      loudspeaker.srcObject = streams[0];
      loudspeaker.play();
      const context = new AudioContext();
      const meter = context.createAnalyser();
      context.createMediaStreamSource(streams[0]).connect(meter);
      const samples = new Float32Array(meter.fftSize);
      setInterval(() => {
        meter.getFloatTimeDomainData(samples);
        if (samples.some((sample) => Math.abs(sample) > 0.02)) note("sound");
      }, 50);
    };
    events.onmessage = ({ data }) => {
      const event = JSON.parse(data);
      note(event.type, { event });
      if (event.type !== "session.created" || sessionId) return;
      peer.session = event.session.id;
      const input = {
        transcription: { model: "whisper-1" },
        turn_detection: { type: "semantic_vad", eagerness: "high" },
      };
      const session = { type: "realtime", instructions: "You are a friendly voice assistant.", audio: { input } };
      events.send(JSON.stringify({ type: "session.update", session }));
    };
    peer.oniceconnectionstatechange = async () => {
      if (peer.iceConnectionState === "disconnected") reconnect(peer);
    };
    await peer.setLocalDescription(await peer.createOffer());
    const answer = await fetch(sessionId ? `/v1/realtime/calls?session_id=${sessionId}` : "/v1/realtime/calls", {
      method: "POST",
      headers: { "Content-Type": "application/sdp" },
      body: peer.localDescription.sdp,
    });
    if (!answer.ok) throw new Error(await answer.text());
    await peer.setRemoteDescription({ type: "answer", sdp: await answer.text() });
    return peer;
  }

  async function reconnect(lost) {
    note("lost");
    lost.close();
    for (;;) {
      try {
        peer = await connect(lost.session);
        peer.session = lost.session;
        return;
      } catch (error) {
        note("refused", { error: String(error) });
        await new Promise((resolve) => setTimeout(resolve, 500));
      }
    }
  }
}
