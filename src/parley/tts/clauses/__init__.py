"""Speech from networks that make the whole sound of a phrase at once, and cannot begin before they have it.

A text is cut into clauses, the first a small one, and one thread makes them one after the other. Between the
clauses of several requests it chooses the one whose audio runs out first::

    SpeakRequest ──► pronounce ──► splitting ──► ClauseSynthesizer ──► ClauseNetwork (onnxruntime)
                                                     │    ▲ stop: within the network's next operator
                                    sound: trimmed,  ▼    │
                  SpeechChunk ◄──── level, pauses ◄─ audio and the places of its words

A synthesizer of this kind is one class with the interface
:class:`parley.tts.clauses.network.ClauseNetwork`.
"""
