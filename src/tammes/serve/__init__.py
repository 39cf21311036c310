"""The pages and the JSON API of `tammes serve`: search a gallery by images, browse it, see its map.

server       a process that listens, and stops when it is told to
app          the ASGI application: api and pages behind the middleware
middleware   host, token, rate, size and time of every request; the headers of every answer
api          JSON (models: its schemas)      pages    HTML (templates/, static/)
state        what the handlers share         reports  the reports of runs
gallery      the gallery that is served, read again when it changes; pixels become vectors
rows         its items in memory, by their ids
decoding     uploads are decoded in processes of their own (decoder), with limits on memory and time
limits       what a client may ask for      connections  how many, and how slow
"""
